"""Reductions over the vocabulary, whole on one device or cut into equal parts over axes of a mesh."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax

from jaxengine.device.layers.sharding import Layout

Array = jax.Array


@dataclass(frozen=True)
class Vocabulary:
    """The `width` token ids that this device holds of a vocabulary of `size`.

    Inside `shard_map`, `axis` names the mesh axes over which the vocabulary is cut and every method ends in a collective
    over one number per row; outside, `axis` is None and `width == size`. Arguments are `[R, width]`, results are `[R]` and equal
    on every device. Ties go to the lowest token id, however the vocabulary is cut.
    """

    size: int
    width: int
    axis: tuple[str, ...] | None = None

    @classmethod
    def part_of(cls, size: int, layout: Layout) -> Vocabulary:
        """The part of each device."""
        if layout.mesh is None or layout.vocab_axis(size) != "vocab":
            return cls(size, size)
        return cls(size, size // layout.shards("vocab"), layout.across("vocab"))

    def start(self) -> Array | int:
        """The first token id held here."""
        return 0 if self.axis is None else lax.axis_index(self.axis) * self.width

    def ids(self) -> Array:
        """The token ids held here, `i32[1, width]`."""
        return lax.broadcasted_iota(jnp.int32, (1, self.width), 1) + self.start()

    def max(self, x: Array) -> Array:
        """The largest value of each row."""
        best = jnp.max(x, axis=-1)
        return best if self.axis is None else lax.pmax(best, self.axis)

    def sum(self, x: Array) -> Array:
        """The sum of each row: exact, and so the same however the vocabulary is cut, when `x` holds integers."""
        total = jnp.sum(x, axis=-1)
        return total if self.axis is None else lax.psum(total, self.axis)

    def count(self, mask: Array) -> Array:
        """How many tokens of each row are in `mask`, `i32[R]`.

        Counted in float32, exact below 2**24, which CPUs sum faster than integers.
        """
        return self.sum(mask.astype(jnp.float32)).astype(jnp.int32)

    def argmax(self, x: Array) -> Array:
        """The token id of the largest value of each row, `i32[R]`. `x` holds no NaN.

        Two plain reductions: XLA vectorises them, and not the paired one of `jnp.argmax` (4 to 5 times slower on CPU).
        """
        best = self.max(x)
        first = jnp.min(jnp.where(x == best[:, None], self.ids(), jnp.iinfo(jnp.int32).max), axis=-1)
        return first if self.axis is None else lax.pmin(first, self.axis)

    def at(self, x: Array, tokens: Array) -> Array:
        """The value of one token per row: `tokens i32[R]` are ids of the whole vocabulary."""
        local = tokens - self.start()
        value = jnp.take_along_axis(x, jnp.clip(local, 0, self.width - 1)[:, None], axis=-1)[:, 0]
        if self.axis is None:
            return value
        return lax.psum(jnp.where((local >= 0) & (local < self.width), value, 0), self.axis)

    def top(self, x: Array, count: int) -> tuple[Array, Array]:
        """The `count` largest values of each row, best first, and their token ids: `[R, count]` each."""
        values, places = lax.top_k(x, min(count, self.width))
        ids = places + self.start()
        if self.axis is None:
            return values, ids
        # Parts come in the order of their ids, so equal values stay ordered by id through the second top_k.
        values = lax.all_gather(values, self.axis, axis=1, tiled=True)
        ids = lax.all_gather(ids, self.axis, axis=1, tiled=True)
        values, places = lax.top_k(values, count)
        return values, jnp.take_along_axis(ids, places, axis=1)

    def places(self, tokens: Array) -> Array:
        """Where token ids lie in this device's part: `width`, which a scatter drops, for those elsewhere and for -1."""
        local = tokens - self.start()
        return jnp.where((tokens >= 0) & (local >= 0) & (local < self.width), local, self.width)
