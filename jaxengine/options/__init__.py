"""What a command line or a constructor says: options, their flags, and what becomes of vLLM's names."""
