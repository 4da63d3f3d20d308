"""What the GPU's kernels share, written in Pallas and compiled through Triton.

    device        what a kernel has to know of the GPU that it is compiled for, and how it runs without one
    targets       GPUs that are compiled for without having one
    attention     of `paged_attention` and `latent_attention`: blocks of work, their schedule, pages, rows, the softmax
    numbers       matrices of 4 and 8 bits as bfloat16
    scaled        of `scaled_matmul` and `grouped_scaled_matmul`: sums that are scaled by groups of inputs
    recurrence    of `gated_delta` and `selective_scan`

Nothing here is an op by itself.
"""
