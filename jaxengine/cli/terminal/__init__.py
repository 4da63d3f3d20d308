"""Conversations and numbers in a terminal: the client of a server, reading lines, writing Markdown as it comes."""
