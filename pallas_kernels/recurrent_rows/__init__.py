"""What recurrent ops (`channel_scan`, `gated_delta`, `generalised_delta`, `selective_scan`) share, whatever the platform.

    rows    how an op goes through the rows of a step: each by itself, from its own state
    form    a recurrence of `gated_delta` or `selective_scan` as kernels see it: one of two kinds, on states in tiles

Kernels for a recurrence of either kind are the platforms' (`tpu/recurrence`, `gpu/recurrence.py`).
"""
