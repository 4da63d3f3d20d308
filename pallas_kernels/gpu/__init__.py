"""What the GPU's kernels share."""
