"""Several hosts that share one engine: how they meet, what they compare, and how the others repeat what the first one does."""
