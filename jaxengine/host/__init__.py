"""What decides: the loop, the scheduler and the ledger of the KV cache. No JAX, no text."""
