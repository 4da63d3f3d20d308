"""What computes: models, their layers and weights, sampling, and the runtime that calls compiled programs."""
