"""A conversation, whatever API it came by: prompt, tools, and the reading of what was generated."""
