"""What the GPU's attention kernels share."""
