"""The cases of `latent_attention` and `write_latents`."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.storage import QUANTISED, latent_page_shape, quantise
from pallas_kernels.testing.arrays import array
from pallas_kernels.testing.attention import TOLERANCE, WILD_PAGE
from pallas_kernels.testing.caches import as_bits


class LatentInputs(NamedTuple):
    """The array arguments of `latent_attention`, in order."""

    q: jax.Array
    pages: jax.Array
    page_table: jax.Array
    offsets: jax.Array
    starts: jax.Array


@dataclass(frozen=True, kw_only=True)
class LatentCase:
    """One call of each. `rows` are (position of the first token, number of tokens); `padding` places follow them.

    An empty row's position means nothing. The cache holds `kv_dtype`, with `bits` as unsigned integers, and NaN wherever nothing
    was written.
    """

    name: str
    reason: str
    rows: tuple[tuple[int, int], ...]
    padding: int = 0
    heads: int = 4
    size: int = 24
    value_size: int = 16
    page_tokens: int = 8
    dtype: str = "float32"
    kv_dtype: str = "float32"
    bits: bool = False

    def __str__(self) -> str:
        return self.name

    @property
    def options(self) -> dict[str, Any]:
        """The keyword arguments of `latent_attention`, its backend excepted."""
        return {
            "scale": self.size**-0.5,
            "value_size": self.value_size,
            "scales": self.scales,
            "kv_dtype": jnp.dtype(self.kv_dtype),
        }

    @property
    def scales(self) -> jax.Array | None:
        """Of a quantised cache, so that the type's largest number is 1 to 8: some normally distributed values saturate."""
        if jnp.dtype(self.kv_dtype) not in QUANTISED:
            return None
        largest = 127.0 if self.kv_dtype == "int8" else float(jnp.finfo(self.kv_dtype).max)
        return array(np.random.default_rng(2).uniform(1, 8, self.size) / largest, jnp.float32)

    @property
    def tolerance(self) -> float:
        """Largest absolute difference from the definition; values are normally distributed."""
        return max(TOLERANCE[self.dtype], TOLERANCE[self.kv_dtype])

    def inputs(self, platform: str = "cpu") -> LatentInputs:
        """The arrays of the call, the same at every call; pages have the shape that they have on `platform`."""
        rng = np.random.default_rng(0)
        ends = [start + count if count else 0 for start, count in self.rows]
        held = [-(-end // self.page_tokens) for end in ends]
        free = iter(rng.permutation(sum(held) + 2) + 1)  # page 0 is the sink, two pages belong to nobody
        pages = np.full((sum(held) + 3, *latent_page_shape(self.page_tokens, self.size, platform=platform)), np.nan)
        table = np.full((len(self.rows), max(held) + 1), WILD_PAGE, np.int32)
        for row, (end, count) in enumerate(zip(ends, held, strict=True)):
            table[row, :count] = [next(free) for _ in range(count)]
            for position in range(end):
                token = pages[table[row, position // self.page_tokens], 0, position % self.page_tokens]
                token[:] = 0
                token[: self.size] = rng.normal(size=self.size)
        offsets = np.cumsum([0, *(count for _, count in self.rows)])
        q = rng.normal(size=(offsets[-1] + self.padding, self.heads, self.size))
        q[offsets[-1] :] = np.nan
        return LatentInputs(
            array(q, self.dtype),
            self.stored(pages),
            array(table, jnp.int32),
            array(offsets, jnp.int32),
            array([start for start, _ in self.rows], jnp.int32),
        )

    def stored(self, values: np.ndarray[Any, Any]) -> jax.Array:
        """Values as the cache holds them."""

        return _store(values, self.scales, kv_dtype=self.kv_dtype, bits=self.bits)


@functools.partial(jax.jit, static_argnames=("kv_dtype", "bits"))
def _store(values: jax.Array, scales: jax.Array | None, *, kv_dtype: str, bits: bool) -> jax.Array:
    plain = values
    if scales is not None:
        padding = values.shape[-1] - len(scales)
        numbers = quantise(values, jnp.pad(scales, (0, padding), constant_values=1), kv_dtype)
        unwritten = jnp.isnan(values) & (kv_dtype == "int8")  # which has no NaN
        plain = jnp.where(unwritten, 127, numbers)
    stored = plain.astype(kv_dtype)
    return as_bits(stored) if bits else stored


LATENT_CASES = (
    LatentCase(name="one-token", reason="the first token of a sequence sees itself alone", rows=((0, 1),)),
    LatentCase(
        name="mixed",
        reason="sequences that decode among prompts, empty rows, and places behind them that hold no token",
        rows=((40, 1), (0, 150), (0, 0), (520, 1), (3, 1), (130, 70), (5, 6)),
        padding=26,
    ),
    LatentCase(
        name="page-boundary",
        reason="the last token fills a page exactly, or is the first of the next",
        rows=((7, 1), (8, 1), (15, 1), (0, 16)),
    ),
    LatentCase(name="long-pages", reason="a page is a block", rows=((300, 1), (255, 2)), page_tokens=256),
    LatentCase(name="only-padding", reason="a step may hold no row of a bucket", rows=((0, 0), (0, 0)), padding=4),
    LatentCase(
        name="heads-20",
        reason="a number of heads that fills no tile (GLM-4.7-Flash), on rows of every length",
        rows=((290, 1), (17, 3), (100, 45)),
        heads=20,
        page_tokens=16,
        dtype="bfloat16",
        kv_dtype="bfloat16",
    ),
    LatentCase(
        name="heads-35",
        reason="more heads than one tile of a GPU's holds, which they do not fill",
        rows=((70, 1), (9, 2)),
        heads=35,
        page_tokens=16,
    ),
    LatentCase(name="all-value", reason="nothing turns by position", rows=((9, 4), (130, 1)), size=16, value_size=16),
    LatentCase(
        name="deepseek-v3",
        reason="the sizes of a real model on one of sixteen chips, whose vectors a TPU pads",
        rows=((140, 1), (0, 9)),
        heads=8,
        size=576,
        value_size=512,
        page_tokens=16,
        dtype="bfloat16",
        kv_dtype="bfloat16",
    ),
    *(
        LatentCase(
            name=f"heads-{heads}",
            reason="so few heads share words on a TPU, on rows of every length",
            rows=((20, 1), (290, 140), (0, 5), (17, 12)),
            padding=3,
            heads=heads,
            size=140,
            value_size=136,
            page_tokens=16,
            dtype="bfloat16",
            kv_dtype="bfloat16",
        )
        for heads in (2, 3)
    ),
    *(
        LatentCase(
            name=f"{dtype}-{kv_dtype}-bits",
            reason="a cache held as bits",
            rows=((140, 5), (11, 2)),
            dtype=dtype,
            kv_dtype=kv_dtype,
            bits=True,
        )
        for dtype, kv_dtype in (("bfloat16", "bfloat16"), ("float32", "bfloat16"), ("float32", "float16"))
    ),
    *(
        LatentCase(
            name=f"{kv_dtype}{'-bits' * bits}",
            reason="a quantised cache: each number of a vector has a scale; four tokens share a TPU's word, 32 a tile",
            rows=((140, 5), (11, 2), (290, 1)),
            page_tokens=32,
            dtype=dtype,
            kv_dtype=kv_dtype,
            bits=bits,
        )
        for dtype, kv_dtype, bits in (
            ("bfloat16", "int8", False),
            ("float32", "float8_e4m3fn", True),
            ("bfloat16", "float8_e4m3fn", False),
            ("bfloat16", "float8_e5m2", False),
        )
    ),
)
