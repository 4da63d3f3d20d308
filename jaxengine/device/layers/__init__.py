"""Building blocks of models: Flax NNX modules and pure functions over the flat tokens of a step.

Letters, the same in kernels, layers and models:

    N  tokens of a step (flat), and query heads where a shape is that of attention
    B  rows             S  token places per row      R  rows that are sampled
    P  pages per row    T  tokens per page
    K  KV heads         H  head size
    E  embedding        F  feed-forward              V  vocabulary
"""
