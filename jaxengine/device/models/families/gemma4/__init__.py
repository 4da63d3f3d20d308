"""Gemma 4: a layer of its own kind, and the model."""
