"""The values that cross: from caller to engine, between the front and the loop, between host and device. No JAX."""
