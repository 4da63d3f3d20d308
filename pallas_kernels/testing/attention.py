"""A case of `paged_attention`: what it is called with. `attention_cases.py` has them all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.storage import QUANTISED
from pallas_kernels.testing.arrays import array
from pallas_kernels.testing.caches import scales, stored

WILD_PAGE = 2**30
TOLERANCE = {"float32": 2e-5, "float16": 3e-3, "bfloat16": 2e-2} | dict.fromkeys(map(str, QUANTISED), 2e-2)
"""From the same stored values: what quantising loses is no error, but that products are of bfloat16 is."""


class AttentionInputs(NamedTuple):
    """The array arguments of `paged_attention`, in order."""

    q: jax.Array
    kv_pages: jax.Array
    page_table: jax.Array
    offsets: jax.Array
    starts: jax.Array


@dataclass(frozen=True, kw_only=True)
class AttentionCase:
    """One call of `paged_attention`. `rows` are (position of the first token, number of tokens); `padding` places follow them.

    An empty row's position means nothing.

    Rows with the same entry in `sequences` belong to one sequence (by default each row has its own), and all sequences share
    their first `shared_pages` pages. `kv_dtype` is the type of the cached values, `bits` stores them as unsigned integers.
    Tokens of a sequence from a position up to another, without it, see each other where `spans` has (sequence, from, to). With
    `crosses` all see so many positions, wherever they stand.
    `stale` is what lies wherever nothing was written (the largest number in int8, which has no NaN). Where `slow`, a test of the
    case takes more than a few seconds on any backend.
    """

    name: str
    reason: str
    rows: tuple[tuple[int, int], ...]
    padding: int = 0
    sequences: tuple[int, ...] | None = None
    shared_pages: int = 0
    heads: int = 4
    kv_heads: int = 2
    head_size: int = 16
    page_tokens: int = 8
    spare_pages: int = 1
    window: int | None = None
    soft_cap: float | None = None
    sinks: bool = False
    alibi: bool = False
    spans: tuple[tuple[int, int, int], ...] = ()
    crosses: int | None = None
    dtype: str = "float32"
    kv_dtype: str = "float32"
    bits: bool = False
    stale: float = float("nan")
    seed: int = 0
    slow: bool = False

    def __str__(self) -> str:
        return self.name

    @property
    def options(self) -> dict[str, Any]:
        """The keyword arguments of `paged_attention`, its backend excepted."""
        rng = np.random.default_rng(self.seed + 1)
        return {
            "scale": self.head_size**-0.5,
            "window": self.window,
            "soft_cap": self.soft_cap,
            "sinks": array(rng.normal(size=self.heads), jnp.float32) if self.sinks else None,
            "alibi_slopes": 2.0 ** (-8 * jnp.arange(1, self.heads + 1) / self.heads) if self.alibi else None,
            "until": self._until(),
            "kv_scales": scales(self),
            "kv_dtype": jnp.dtype(self.kv_dtype),
            "kv_heads": self.kv_heads,
        }

    @property
    def tolerance(self) -> float:
        """Largest absolute difference from the definition; values are normally distributed."""
        return max(TOLERANCE[self.dtype], TOLERANCE[self.kv_dtype])

    def last_seen(self, sequence: int, position: int) -> int:
        """The last position that the token at one of a sequence attends to."""
        if self.crosses is not None:
            return self.crosses - 1
        ends = (end for of, begin, end in self.spans if of == sequence and begin <= position < end)
        return next(ends, position + 1) - 1

    def _until(self) -> jax.Array | None:
        """Of each place; anything in padding."""
        if not self.spans and self.crosses is None:
            return None
        seen = [
            self.last_seen(sequence, start + token)
            for sequence, (start, count) in zip(self._sequences, self.rows, strict=True)
            for token in range(count)
        ]
        return array([*seen, *[WILD_PAGE] * self.padding], jnp.int32)

    def _end(self, sequence: int, start: int, count: int) -> int:
        """The position after the last that a row sees."""
        return self.last_seen(sequence, start + count - 1) + 1 if count else 0

    @property
    def _sequences(self) -> tuple[int, ...]:
        return self.sequences or tuple(range(len(self.rows)))

    def inputs(self, platform: str = "cpu") -> AttentionInputs:
        """The arrays of the call, the same at every call; pages have the shape that they have on `platform`.

        Queries of padding are NaN.
        """
        rng = np.random.default_rng(self.seed)
        sequences = self._sequences
        ends: dict[int, int] = {}
        for sequence, (start, count) in zip(sequences, self.rows, strict=True):
            ends[sequence] = max(ends.get(sequence, 0), self._end(sequence, start, count))
        most = max(1, *(-(-end // self.page_tokens) for end in ends.values()))

        free = iter(rng.permutation(len(ends) * most + 3) + 1)  # page 0 is the sink, three pages belong to nobody
        shared = [next(free) for _ in range(self.shared_pages)]
        pages = np.full((len(ends) * most + 4, self.page_tokens, 2 * self.kv_heads, self.head_size), self.stale)
        tables: dict[int, list[int]] = {}
        for sequence, end in ends.items():
            own = -(-end // self.page_tokens) - len(shared)
            tables[sequence] = shared + [next(free) for _ in range(own)]
        for sequence, end in ends.items():
            for position in range(end):
                page = tables[sequence][position // self.page_tokens]
                pages[page, position % self.page_tokens] = rng.normal(size=pages.shape[2:])

        table = np.full((len(self.rows), most + self.spare_pages), WILD_PAGE, np.int32)
        for row, (sequence, (start, count)) in enumerate(zip(sequences, self.rows, strict=True)):
            used = -(-self._end(sequence, start, count) // self.page_tokens)
            table[row, :used] = tables[sequence][:used]
        offsets = np.cumsum([0, *(count for _, count in self.rows)])
        q = rng.normal(size=(offsets[-1] + self.padding, self.heads, self.head_size))
        q[offsets[-1] :] = np.nan
        return AttentionInputs(
            array(q, self.dtype),
            stored(pages, self, platform),
            array(table, jnp.int32),
            array(offsets, jnp.int32),
            array([start for start, _ in self.rows], jnp.int32),
        )
