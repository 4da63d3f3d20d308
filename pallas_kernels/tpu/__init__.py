"""What the TPU's kernels share.

    chip          what a kernel has to know of the chip that it is compiled for, and how it runs without one
    attention     of `paged_attention` and `latent_attention`: blocks of work, their schedule, the stream of pages, the softmax
    recurrence    of `gated_delta` and `selective_scan`: rows of one token, and chunks of longer ones
    channels, unpack, padding    how values lie in tiles, come out of words of 32 bits, and what is written where no row is

Everything here is Pallas or plain JAX; nothing is an op by itself.
"""
