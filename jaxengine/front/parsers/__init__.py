"""What a model writes in its own format, read as reasoning, content and tool calls. Text in, deltas out."""
