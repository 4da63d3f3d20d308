"""The TPU's kernels of recurrences."""
