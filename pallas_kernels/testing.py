"""Conformance: named cases as data, each with the reason why it is there, that every backend of an op must pass.

`python -m pytest tests/pallas_kernels` runs the product of cases and backends; a case is skipped only where a backend's own
`supports` refuses it. Memory is poisoned: whatever no row may read holds NaN (or large stale numbers), and page table entries
after a row's last page hold wild ids.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from pallas_kernels.storage import HELD_AS_BITS, QUANTISED, join_heads, kv_page_shape, quantise

Array = NDArray[Any]
WILD_PAGE = 2**30
TOLERANCE = {"float32": 2e-5, "float16": 3e-3, "bfloat16": 2e-2} | dict.fromkeys(map(str, QUANTISED), 2e-2)
"""From the same stored values: what quantising loses is no error, but that products are of bfloat16 is."""


class AttentionInputs(NamedTuple):
    """The array arguments of `paged_attention`, in order."""

    q: jax.Array
    kv_pages: jax.Array
    page_table: jax.Array
    starts: jax.Array
    lengths: jax.Array


@dataclass(frozen=True, kw_only=True)
class AttentionCase:
    """One call of `paged_attention`. `rows` are (position of the first token, number of tokens).

    Rows with the same entry in `sequences` belong to one sequence (by default each row has its own), and all sequences share
    their first `shared_pages` pages. `kv_dtype` is the type of the cached values, `bits` stores them as unsigned integers.
    `stale` is what lies wherever nothing was written (the largest number in int8, which has no NaN).
    """

    name: str
    reason: str
    rows: tuple[tuple[int, int], ...]
    places: int
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
    dtype: str = "float32"
    kv_dtype: str = "float32"
    bits: bool = False
    stale: float = float("nan")
    seed: int = 0

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
            "sinks": jnp.asarray(rng.normal(size=self.heads), jnp.float32) if self.sinks else None,
            "alibi_slopes": 2.0 ** (-8 * jnp.arange(1, self.heads + 1) / self.heads) if self.alibi else None,
            "kv_scales": _scales(self),
            "kv_dtype": jnp.dtype(self.kv_dtype),
            "kv_heads": self.kv_heads,
        }

    @property
    def tolerance(self) -> float:
        """Largest absolute difference from the definition; values are normally distributed."""
        return max(TOLERANCE[self.dtype], TOLERANCE[self.kv_dtype])

    def inputs(self, platform: str = "cpu") -> AttentionInputs:
        """The arrays of the call, the same at every call; pages have the shape that they have on `platform`."""
        rng = np.random.default_rng(self.seed)
        sequences = self.sequences or tuple(range(len(self.rows)))
        ends: dict[int, int] = {}
        for sequence, (start, length) in zip(sequences, self.rows, strict=True):
            ends[sequence] = max(ends.get(sequence, 0), start + length)
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
        for row, (sequence, (start, length)) in enumerate(zip(sequences, self.rows, strict=True)):
            used = -(-(start + length) // self.page_tokens)
            table[row, :used] = tables[sequence][:used]
        kv_pages = _stored(pages, self, platform)
        return AttentionInputs(
            jnp.asarray(rng.normal(size=(len(self.rows), self.places, self.heads, self.head_size)), self.dtype),
            kv_pages,
            jnp.asarray(table),
            jnp.asarray([start for start, _ in self.rows], jnp.int32),
            jnp.asarray([length for _, length in self.rows], jnp.int32),
        )


def _stored(pages: Array, case: AttentionCase | WriteCase, platform: str) -> jax.Array:
    """Plain pages `[pages, T, 2K, H]` as they are stored on `platform`."""
    _, channels, lanes = kv_page_shape(
        case.page_tokens, case.kv_heads, case.head_size, platform=platform, dtype=case.kv_dtype
    )
    scales = _scales(case)
    keys, values = jnp.asarray(pages[:, :, 0::2]), jnp.asarray(pages[:, :, 1::2])
    if scales is None:
        keys, values = keys.astype(case.kv_dtype), values.astype(case.kv_dtype)
    else:
        kv_dtype = jnp.dtype(case.kv_dtype)
        keys, values = (
            jnp.where(jnp.isnan(plain) & (kv_dtype == jnp.int8), 127, quantise(plain, by_head, kv_dtype)).astype(
                kv_dtype
            )
            for plain, by_head in ((keys, scales[0]), (values, scales[1]))
        )
    stored = join_heads(keys, values, channels=channels, lanes=lanes)
    bits = next(bits for bits in HELD_AS_BITS if bits.itemsize == stored.dtype.itemsize) if case.bits else None
    return stored if bits is None else jax.lax.bitcast_convert_type(stored, bits)


def _scales(case: AttentionCase | WriteCase) -> jax.Array | None:
    """Scales with which the type's largest number is 1 to 8: heads differ, and some normally distributed values saturate."""
    if jnp.dtype(case.kv_dtype) not in QUANTISED:
        return None
    largest = 127.0 if case.kv_dtype == "int8" else float(jnp.finfo(case.kv_dtype).max)
    return jnp.asarray(np.random.default_rng(2).uniform(1, 8, (2, case.kv_heads)) / largest, jnp.float32)


def _decode(*contexts: int) -> tuple[tuple[int, int], ...]:
    """Rows of one token each that see `contexts` positions."""
    return tuple((context - 1, 1) for context in contexts)


ATTENTION_CASES = (
    AttentionCase(name="one-token", reason="the first token of a sequence sees itself alone", rows=((0, 1),), places=1),
    AttentionCase(
        name="decode-ragged", reason="rows end at their own lengths", rows=_decode(1, 5, 23, 40, 17), places=1
    ),
    AttentionCase(
        name="prefill-ragged",
        reason="rows of different lengths in one bucket",
        rows=((0, 11), (3, 1), (9, 5)),
        places=11,
    ),
    AttentionCase(
        name="page-boundary",
        reason="the last token fills a page exactly, or is the first of the next",
        rows=((7, 1), (8, 1), (15, 1), (16, 1)),
        places=1,
        spare_pages=0,
    ),
    AttentionCase(
        name="prefill-page-boundary",
        reason="a row that begins and ends on page edges",
        rows=((8, 8), (0, 16)),
        places=16,
    ),
    AttentionCase(
        name="padding-rows",
        reason="rows of length 0 give zeros and read nothing",
        rows=((0, 0), (9, 4), (0, 0)),
        places=4,
    ),
    AttentionCase(name="only-padding", reason="a step may hold no row of a bucket", rows=((0, 0), (0, 0)), places=2),
    AttentionCase(
        name="padding-row-with-start", reason="a padding row's start means nothing", rows=((6, 0), (4, 2)), places=2
    ),
    AttentionCase(
        name="one-prompt-many-rows",
        reason="rows of one prompt in one step: all keys are written, each row sees up to itself",
        rows=((0, 8), (8, 8), (16, 5)),
        places=8,
        sequences=(0, 0, 0),
    ),
    AttentionCase(
        name="shared-pages",
        reason="sequences with a common prefix read the same pages",
        rows=((18, 3), (17, 1), (30, 2)),
        places=3,
        shared_pages=2,
    ),
    AttentionCase(
        name="stale-data",
        reason="a reused page holds finite numbers of another sequence, which no test for NaN would catch",
        rows=((3, 2), (12, 1)),
        places=2,
        stale=1e4,
    ),
    AttentionCase(
        name="stale-infinity", reason="0 times infinity is NaN", rows=((3, 2), (12, 1)), places=2, stale=float("inf")
    ),
    AttentionCase(
        name="long", reason="several blocks of pages per row", rows=((300, 1), (5, 1), (129, 1), (127, 1)), places=1
    ),
    AttentionCase(
        name="long-prefill",
        reason="a row longer than a tile, over several blocks",
        rows=((130, 150), (0, 7)),
        places=150,
    ),
    AttentionCase(
        name="window-in-page",
        reason="a window shorter than a page",
        rows=((20, 6), (2, 3)),
        places=6,
        window=3,
    ),
    AttentionCase(name="window-of-one", reason="a token that sees itself alone", rows=((20, 2),), places=2, window=1),
    AttentionCase(
        name="window-skips-blocks",
        reason="whole blocks lie before the window, of one row or of a tile's later tokens",
        rows=((400, 1), (10, 1), (255, 1), (256, 1)),
        places=1,
        window=20,
    ),
    AttentionCase(
        name="window-prefill-blocks",
        reason="blocks that some tokens of a row see and others don't",
        rows=((120, 140),),
        places=140,
        window=16,
    ),
    AttentionCase(name="window-wider-than-context", reason="nothing is cut off", rows=((3, 4),), places=4, window=4096),
    AttentionCase(name="soft-cap", reason="Gemma 2", rows=((9, 4), (30, 1)), places=4, soft_cap=2.0),
    AttentionCase(
        name="sinks", reason="attention sinks take weight and give no value", rows=((9, 4),), places=4, sinks=True
    ),
    AttentionCase(
        name="alibi", reason="nearer keys weigh more (BLOOM, MPT)", rows=((9, 4), (0, 3)), places=4, heads=6, alibi=True
    ),
    AttentionCase(
        name="alibi-blocks",
        reason="blocks that all tokens see get their distances too, and far ones may weigh nothing",
        rows=((300, 1), (500, 3), (5, 1)),
        places=3,
        alibi=True,
    ),
    AttentionCase(
        name="alibi-prefill-blocks",
        reason="many queries per block, each with its own distances",
        rows=((130, 150), (0, 7)),
        places=150,
        heads=6,
        alibi=True,
    ),
    AttentionCase(
        name="all-options",
        reason="window, soft cap, sinks and slopes together, in decode",
        rows=_decode(140, 3, 60),
        places=1,
        window=33,
        soft_cap=5.0,
        sinks=True,
        alibi=True,
    ),
    AttentionCase(
        name="multi-head", reason="one query head per KV head", rows=_decode(9, 30), places=1, heads=3, kv_heads=3
    ),
    AttentionCase(
        name="odd-kv-heads",
        reason="channels that fill no tile are padded, and a head of 64 finds no other to share a word with",
        rows=((9, 2), (140, 1)),
        places=2,
        heads=6,
        kv_heads=3,
        head_size=64,
        dtype="bfloat16",
        kv_dtype="bfloat16",
    ),
    AttentionCase(
        name="single-head", reason="a product of one row", rows=_decode(9, 30), places=1, heads=1, kv_heads=1
    ),
    AttentionCase(
        name="multi-query", reason="16 query heads share one KV head", rows=((9, 2),), places=2, heads=16, kv_heads=1
    ),
    AttentionCase(
        name="ratio-7", reason="a ratio that is no power of two (Qwen2)", rows=((9, 2),), places=2, heads=14, kv_heads=2
    ),
    *(
        AttentionCase(
            name=f"head-size-{size}", reason="head sizes of real models", rows=((9, 3),), places=3, head_size=size
        )
        for size in (8, 64, 80, 96, 112, 128, 256)
    ),
    *(
        AttentionCase(
            name=f"page-of-{tokens}",
            reason="pages from one token to more than a block",
            rows=((150, 2), (3, 1)),
            places=2,
            page_tokens=tokens,
        )
        for tokens in (1, 16, 24, 64, 128, 256)
    ),
    *(
        AttentionCase(
            name=f"{dtype}-{kv_dtype}{'-bits' if bits else ''}",
            reason="types of queries and cache, and a cache held as bits",
            rows=((140, 5), (11, 2), (0, 0)),
            places=5,
            head_size=64,
            dtype=dtype,
            kv_dtype=kv_dtype,
            bits=bits,
        )
        for dtype, kv_dtype, bits in (
            ("bfloat16", "bfloat16", False),
            ("bfloat16", "bfloat16", True),
            ("float32", "bfloat16", True),
            ("float16", "float16", False),
            ("float16", "float16", True),
            ("float32", "float16", True),
            ("bfloat16", "float32", False),
            *(("bfloat16", str(quantised), False) for quantised in QUANTISED),
            ("float32", "int8", False),
            ("float16", "float8_e4m3fn", True),
            ("float32", "float8_e5m2", True),
        )
    ),
    *(
        AttentionCase(
            name=f"{kv_dtype}-{name}",
            reason="scales of keys come before the soft cap, those of values after everything; four 8-bit values share a word",
            rows=((140, 1), (1, 1), (260, 1)),
            places=1,
            soft_cap=5.0,
            sinks=True,
            heads=2 * kv_heads,
            kv_heads=kv_heads,
            head_size=head_size,
            kv_dtype=kv_dtype,
        )
        for kv_dtype, name, kv_heads, head_size in (
            ("int8", "one-kv-head", 1, 128),
            ("int8", "three-kv-heads", 3, 64),
            ("float8_e4m3fn", "head-size-64", 2, 64),
            ("float8_e5m2", "head-size-256", 2, 256),
        )
    ),
    AttentionCase(
        name="int8-prefill-blocks",
        reason="many queries per block: keys and values are unpacked once",
        rows=((130, 150), (0, 7)),
        places=150,
        dtype="bfloat16",
        kv_dtype="int8",
    ),
)


@dataclass(frozen=True, kw_only=True)
class WriteCase:
    """One call of `write_kv`: tokens go to `slots` of a cache of 6 pages."""

    name: str
    reason: str
    slots: tuple[int, ...]
    kv_heads: int = 2
    head_size: int = 16
    page_tokens: int = 8
    dtype: str = "float32"
    kv_dtype: str = "float32"
    bits: bool = False

    def __str__(self) -> str:
        return self.name

    @property
    def options(self) -> dict[str, Any]:
        """The keyword arguments of `write_kv`, its backend excepted."""
        return {"kv_scales": _scales(self), "kv_dtype": jnp.dtype(self.kv_dtype)}

    def inputs(self, platform: str = "cpu") -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
        """`kv_pages`, `k`, `v` and `slots`, the same at every call; pages have the shape that they have on `platform`."""
        rng = np.random.default_rng(0)
        pages = rng.normal(size=(6, self.page_tokens, 2 * self.kv_heads, self.head_size))
        kv_pages = _stored(pages, self, platform)
        k, v = (
            jnp.asarray(rng.normal(size=(len(self.slots), self.kv_heads, self.head_size)), self.dtype) for _ in range(2)
        )
        return kv_pages, k, v, jnp.asarray(self.slots, jnp.int32)


WRITE_CASES = (
    WriteCase(name="one-token", reason="a decode step of one row", slots=(13,)),
    WriteCase(name="scattered", reason="every row of a decode step writes to a page of its own", slots=(9, 40, 16, 31)),
    WriteCase(name="run-over-pages", reason="a prefill row that crosses page edges", slots=tuple(range(12, 35))),
    WriteCase(name="padding", reason="padding shares a slot of the sink", slots=(0, 17, 0, 0, 18)),
    WriteCase(name="last-slot", reason="the pool's last place", slots=(47,)),
    WriteCase(
        name="runs-and-padding",
        reason="a prompt's tokens follow each other, with a page's edge and the bucket's padding among them",
        slots=(*range(9, 45), *(0,) * 10),
    ),
    WriteCase(name="head-size-64", reason="keys and values share a TPU's vector", slots=(20, 9), head_size=64),
    WriteCase(name="head-size-80", reason="no multiple of a vector", slots=(20, 21), head_size=80),
    *(
        WriteCase(
            name=f"{dtype}-{kv_dtype}{'-bits' if bits else ''}",
            reason="values are rounded to the cache's type",
            slots=(8, 30, 0),
            dtype=dtype,
            kv_dtype=kv_dtype,
            bits=bits,
        )
        for dtype, kv_dtype, bits in (
            ("bfloat16", "bfloat16", False),
            ("bfloat16", "bfloat16", True),
            ("float32", "bfloat16", True),
            ("float16", "float16", True),
            ("float32", "float16", True),
            ("bfloat16", "int8", False),
            ("float32", "float8_e4m3fn", False),
            ("bfloat16", "float8_e4m3fn", True),
            ("float32", "float8_e5m2", False),
            ("float16", "float8_e5m2", True),
        )
    ),
    WriteCase(
        name="int8-runs",
        reason="scales of three heads, in whole runs",
        slots=tuple(range(8, 44)),
        kv_heads=3,
        kv_dtype="int8",
    ),
)


@dataclass(frozen=True, kw_only=True)
class CopyCase:
    """One call of `copy_pages` on a cache of 8 pages."""

    name: str
    reason: str
    sources: tuple[int, ...]
    destinations: tuple[int, ...]
    dtype: str = "float32"

    def __str__(self) -> str:
        return self.name

    def inputs(self) -> tuple[jax.Array, jax.Array, jax.Array]:
        """`kv_pages`, `sources` and `destinations`, the same at every call."""
        values = np.random.default_rng(0).integers(0, 2**15, size=(8, 4, 6, 16))
        return (
            jnp.asarray(values).astype(self.dtype),
            jnp.asarray(self.sources, jnp.int32),
            jnp.asarray(self.destinations, jnp.int32),
        )


COPY_CASES = (
    CopyCase(name="one", reason="a sequence forks", sources=(3,), destinations=(5,)),
    CopyCase(name="fan-out", reason="one page becomes many (n > 1)", sources=(2, 2, 2), destinations=(4, 5, 6)),
    CopyCase(name="padding", reason="(0, 0) pairs do nothing", sources=(1, 0, 0), destinations=(7, 0, 0)),
    CopyCase(name="chain", reason="a page is read before it is written", sources=(1, 2, 3), destinations=(2, 3, 4)),
    CopyCase(name="swap", reason="all reads come before all writes", sources=(1, 2), destinations=(2, 1)),
    CopyCase(name="bits", reason="pages are moved as they are", sources=(3,), destinations=(5,), dtype="uint16"),
    CopyCase(name="bfloat16", reason="pages are moved as they are", sources=(3,), destinations=(5,), dtype="bfloat16"),
)
