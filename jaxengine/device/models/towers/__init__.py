"""Encoders of pictures: what turns patches into embeddings that stand in a prompt."""
