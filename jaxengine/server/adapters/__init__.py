"""The adapters (LoRA) of a server."""
