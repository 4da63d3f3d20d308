"""What kernels of attention share, whatever a page holds: those of `paged_attention` and of `latent_attention`."""
