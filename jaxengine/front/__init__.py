"""The user's side of the messages: prompts, text, parsers, streams. It decides nothing about steps."""
