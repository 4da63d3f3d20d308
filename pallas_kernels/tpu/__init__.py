"""What the TPU's kernels share."""
