"""The rows that experts multiply, pairs of a token and an expert, and the sum of what they give for each token."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxengine.device.layers.sharding import Layout
from pallas_kernels import sum_rows

BLOCK = 64
"""Rows of blocks are a multiple of it."""


class Pairs(NamedTuple):
    """Of a token and its expert, sorted by the expert. Those of other devices and of padding are the last.

    `numbers [M]` are those of pairs, `tokens` times `chosen`; `experts [M]` and `weights [M]` theirs; `sizes` of them are each
    expert's.
    """

    numbers: jax.Array
    experts: jax.Array
    weights: jax.Array
    sizes: jax.Array

    @classmethod
    def sort(cls, experts: jax.Array, weights: jax.Array, count: int) -> Pairs:
        """By `experts` and `weights [N, k]`; experts of `count` on are not this device's."""
        # One number stands for an expert and a pair, and is no other's: a sort that has nothing else to keep in order. It fits
        # 31 bits while `(count + 1) * N * k` does: with 512 experts, 10 of each token, up to 400,000 tokens a step.
        keys = experts.reshape(-1) * experts.size + jnp.arange(experts.size, dtype=jnp.int32)
        keys, weights = lax.sort((keys, weights.reshape(-1)), num_keys=1, is_stable=False)
        experts, numbers = lax.div(keys, experts.size), lax.rem(keys, experts.size)
        return cls(numbers, experts, weights, (experts[:, None] == jnp.arange(count)).sum(axis=0, dtype=jnp.int32))

    def block(self, first: jax.Array, most: int) -> Pairs:
        """`most` of them from the `first` on."""

        def own(array: jax.Array) -> jax.Array:
            return lax.dynamic_slice_in_dim(jnp.pad(array, (0, most)), first, most)

        ends = jnp.cumsum(self.sizes)
        sizes = jnp.clip(ends, first, first + most) - jnp.clip(ends - self.sizes, first, first + most)
        return Pairs(own(self.numbers), own(self.experts), own(self.weights), sizes)


def own_rows(pairs: int, layout: Layout, platform: str) -> int:
    """Of so many pairs, those that a device multiplies at once: half as many again as it has if all have the same number.

    On a TPU XLA moves rows one by one, and most of them are other devices'. Elsewhere kernels pass over these. Where devices
    share an expert they wait for each other within its products, so that none may have more blocks than another.
    """
    devices = layout.shards("experts")
    if platform != "tpu" or devices == 1 or layout.shards("expert_mlp") > 1:
        return pairs
    return min(pairs, -(-3 * pairs // (2 * devices * BLOCK)) * BLOCK)


def sum_by_rank(outer: jax.Array, pairs: Pairs, here: jax.Array, weights: jax.Array) -> jax.Array:
    """What experts gave, `outer [N k, E]` by pairs, times `weights [N, k]`, of those that are `here` -> float32 `[N, E]`."""
    row_of_pair = jnp.argsort(pairs.numbers).reshape(here.shape)
    mixed = jnp.zeros((len(here), outer.shape[1]), jnp.float32)
    # One expert of each token after the other: all rows in float32 at once are many times the residual stream, and
    # XLA:CPU's sum over an axis depends on the number of tokens.
    for rank in range(here.shape[1]):
        found = jnp.where(here[:, [rank]], outer[row_of_pair[:, rank]].astype(jnp.float32), 0.0)
        mixed += weights[:, [rank]] * found
    return mixed


def sum_by_blocks(
    outer: Callable[[Pairs], jax.Array],
    pairs: Pairs,
    sums: jax.Array,
    *,
    weigh: bool,
    most: int,
) -> jax.Array:
    """`sums [N, E]` with what `outer` gives for pairs, `[M, E]`, if told so times their weights, added by token.

    That takes `most` pairs at a time, as often as there are more in `sizes`.
    """
    count, chosen = pairs.sizes.sum(), pairs.numbers.size // len(sums)

    def add(number: jax.Array, mixed: jax.Array) -> jax.Array:
        first = number * most
        block = pairs.block(first, most)
        exists = jnp.arange(most) < count - first
        places = jnp.where(exists, block.numbers // chosen, len(sums))
        weights = block.weights if weigh else jnp.ones_like(block.weights)
        return sum_rows(mixed, outer(block), places, weights, platform="tpu")

    return lax.fori_loop(0, -(-count // most), add, sums)
