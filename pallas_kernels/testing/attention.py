"""The cases of `paged_attention`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.storage import QUANTISED
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
            "sinks": jnp.asarray(rng.normal(size=self.heads), jnp.float32) if self.sinks else None,
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
        return jnp.asarray([*seen, *[WILD_PAGE] * self.padding], jnp.int32)

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
            jnp.asarray(q, self.dtype),
            stored(pages, self, platform),
            jnp.asarray(table),
            jnp.asarray(offsets, jnp.int32),
            jnp.asarray([start for start, _ in self.rows], jnp.int32),
        )


def _decode(*contexts: int) -> tuple[tuple[int, int], ...]:
    """Rows of one token each that see `contexts` positions."""
    return tuple((context - 1, 1) for context in contexts)


ATTENTION_CASES = (
    AttentionCase(name="one-token", reason="the first token of a sequence sees itself alone", rows=((0, 1),)),
    AttentionCase(name="decode-ragged", reason="rows end at their own lengths", rows=_decode(1, 5, 23, 40, 17)),
    AttentionCase(
        name="prefill-ragged",
        reason="rows of different lengths in one step, and places behind them that hold no token",
        rows=((0, 11), (3, 1), (9, 5)),
        padding=7,
    ),
    AttentionCase(
        name="page-boundary",
        reason="the last token fills a page exactly, or is the first of the next",
        rows=((7, 1), (8, 1), (15, 1), (16, 1)),
        spare_pages=0,
    ),
    AttentionCase(
        name="prefill-page-boundary",
        reason="a row that begins and ends on page edges",
        rows=((8, 8), (0, 16)),
    ),
    AttentionCase(
        name="ends-on-page-edges",
        reason="rows of any length that end where a page does, which is where their tables end",
        rows=((0, 8), (3, 5), (15, 1), (7, 17), (8, 0)),
        spare_pages=0,
    ),
    AttentionCase(
        name="padding-rows",
        reason="rows without tokens lie anywhere, read nothing and move nobody's places",
        rows=((0, 0), (9, 4), (0, 0), (0, 0), (20, 1), (3, 2), (0, 0)),
        padding=3,
    ),
    AttentionCase(name="only-padding", reason="a step may hold no row of a bucket", rows=((0, 0), (0, 0)), padding=4),
    AttentionCase(
        name="empty-row-with-start",
        reason="an empty row's start means nothing",
        rows=((6, 0), (4, 2), (2**30, 0)),
    ),
    AttentionCase(
        name="padding-after-decode",
        reason="a bucket has more rows and places than the step",
        rows=(*_decode(17, 1, 8), (0, 0), (0, 0)),
        padding=13,
    ),
    AttentionCase(
        name="mixed",
        reason="sequences that decode among prompts, none of which begins where a tile would",
        rows=((40, 1), (0, 150), (200, 1), (3, 1), (130, 70), (9, 1), (5, 6)),
        padding=26,
    ),
    AttentionCase(
        name="mixed-options",
        reason="every tile has its own distances and its own first block",
        rows=((340, 1), (0, 33), (200, 1), (3, 1), (130, 140), (9, 1), (500, 2)),
        padding=5,
        window=60,
        soft_cap=5.0,
        sinks=True,
        alibi=True,
    ),
    *(
        AttentionCase(
            name=f"mixed-{kv_dtype}",
            reason="one step has tiles of every kind, in the types that are served",
            rows=((140, 1), (0, 20), (260, 1), (100, 130)),
            padding=8,
            head_size=64,
            dtype="bfloat16",
            kv_dtype=kv_dtype,
        )
        for kv_dtype in ("bfloat16", "int8")
    ),
    AttentionCase(
        name="row-lengths",
        reason="rows one shorter and one longer than a tile may be",
        rows=tuple((start, count) for start, count in enumerate((1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 64, 65, 127, 129))),
    ),
    AttentionCase(
        name="256-rows",
        reason="as many rows as a large bucket has",
        rows=tuple((37 * row % 50, (1, 1, 1, 3, 0, 1, 1, 20)[row % 8]) for row in range(256)),
        padding=64,
        heads=2,
        kv_heads=1,
    ),
    AttentionCase(
        name="row-of-8192",
        reason="a whole prompt may be one row",
        rows=((70, 1), (0, 8192), (9, 1)),
        heads=2,
        kv_heads=1,
        page_tokens=128,
        slow=True,
    ),
    AttentionCase(
        name="one-prompt-many-rows",
        reason="rows of one prompt in one step: all keys are written, each row sees up to itself",
        rows=((0, 8), (8, 8), (16, 5)),
        sequences=(0, 0, 0),
    ),
    AttentionCase(
        name="one-prompt-any-order",
        reason="rows of one prompt need not follow each other, nor stand in its order",
        rows=((16, 5), (4, 1), (0, 8), (8, 8), (21, 1)),
        sequences=(0, 1, 0, 0, 0),
    ),
    AttentionCase(
        name="shared-pages",
        reason="sequences with a common prefix read the same pages",
        rows=((18, 3), (17, 1), (30, 2)),
        shared_pages=2,
    ),
    AttentionCase(
        name="stale-data",
        reason="a reused page holds finite numbers of another sequence, which no test for NaN would catch",
        rows=((3, 2), (12, 1)),
        stale=1e4,
    ),
    AttentionCase(name="stale-infinity", reason="0 times infinity is NaN", rows=((3, 2), (12, 1)), stale=float("inf")),
    AttentionCase(name="long", reason="several blocks of pages per row", rows=((300, 1), (5, 1), (129, 1), (127, 1))),
    AttentionCase(
        name="long-prefill",
        reason="a row longer than a tile, over several blocks",
        rows=((130, 150), (0, 7)),
    ),
    AttentionCase(
        name="window-in-page",
        reason="a window shorter than a page",
        rows=((20, 6), (2, 3)),
        window=3,
    ),
    AttentionCase(name="window-of-one", reason="a token that sees itself alone", rows=((20, 2),), window=1),
    AttentionCase(
        name="window-skips-blocks",
        reason="whole blocks lie before the window, of one row or of a tile's later tokens",
        rows=((400, 1), (10, 1), (255, 1), (256, 1)),
        window=20,
    ),
    AttentionCase(
        name="window-prefill-blocks",
        reason="blocks that some tokens of a row see and others don't",
        rows=((120, 140),),
        window=16,
    ),
    AttentionCase(name="window-wider-than-context", reason="nothing is cut off", rows=((3, 4),), window=4096),
    AttentionCase(name="soft-cap", reason="Gemma 2", rows=((9, 4), (30, 1)), soft_cap=2.0),
    AttentionCase(name="sinks", reason="attention sinks take weight and give no value", rows=((9, 4),), sinks=True),
    AttentionCase(
        name="alibi", reason="nearer keys weigh more (BLOOM, MPT)", rows=((9, 4), (0, 3)), heads=6, alibi=True
    ),
    AttentionCase(
        name="alibi-blocks",
        reason="blocks that all tokens see get their distances too, and far ones may weigh nothing",
        rows=((300, 1), (500, 3), (5, 1)),
        alibi=True,
    ),
    AttentionCase(
        name="alibi-prefill-blocks",
        reason="many queries per block, each with its own distances",
        rows=((130, 150), (0, 7)),
        heads=6,
        alibi=True,
    ),
    AttentionCase(
        name="all-options",
        reason="window, soft cap, sinks and slopes together, in decode",
        rows=_decode(140, 3, 60),
        window=33,
        soft_cap=5.0,
        sinks=True,
        alibi=True,
    ),
    AttentionCase(
        name="spans",
        reason="pictures whose tokens see each other, over several blocks, beside text and a sequence that decodes",
        rows=((0, 150), (40, 1), (130, 70), (3, 0), (5, 20)),
        spans=((0, 3, 70), (0, 70, 149), (2, 140, 200), (4, 5, 9)),
        padding=9,
    ),
    AttentionCase(
        name="spans-window",
        reason="Gemma 3: a window begins where the token's own position says, and a picture is longer than it",
        rows=((0, 150), (140, 1), (100, 90)),
        spans=((0, 10, 140), (2, 110, 180)),
        window=50,
        soft_cap=5.0,
        sinks=True,
        alibi=True,
        heads=6,
    ),
    AttentionCase(
        name="crosses",
        reason="what was written once is seen whole by tokens before and behind its end, in rows of any length",
        rows=((0, 4), (7, 1), (400, 1), (0, 90), (9, 0)),
        crosses=150,
        padding=3,
    ),
    AttentionCase(
        name="crosses-bfloat16",
        reason="Whisper's heads in the type that is served",
        rows=((0, 4), (7, 1), (0, 70), (300, 2)),
        heads=2,
        kv_heads=2,
        head_size=64,
        crosses=131,
        dtype="bfloat16",
        kv_dtype="bfloat16",
    ),
    AttentionCase(name="multi-head", reason="one query head per KV head", rows=_decode(9, 30), heads=3, kv_heads=3),
    AttentionCase(
        name="odd-kv-heads",
        reason="channels that fill no tile are padded, and a head of 64 finds no other to share a word with",
        rows=((9, 2), (140, 1)),
        heads=6,
        kv_heads=3,
        head_size=64,
        dtype="bfloat16",
        kv_dtype="bfloat16",
    ),
    AttentionCase(name="single-head", reason="a product of one row", rows=_decode(9, 30), heads=1, kv_heads=1),
    AttentionCase(name="multi-query", reason="16 query heads share one KV head", rows=((9, 2),), heads=16, kv_heads=1),
    AttentionCase(
        name="ratio-7", reason="a ratio that is no power of two (Qwen2)", rows=((9, 2),), heads=14, kv_heads=2
    ),
    *(
        AttentionCase(name=f"head-size-{size}", reason="head sizes of real models", rows=((9, 3),), head_size=size)
        for size in (8, 64, 80, 96, 112, 128, 256)
    ),
    *(
        AttentionCase(
            name=f"page-of-{tokens}",
            reason="pages from one token to more than a block",
            rows=((150, 2), (3, 1)),
            page_tokens=tokens,
        )
        for tokens in (1, 16, 24, 64, 128, 256)
    ),
    *(
        AttentionCase(
            name=f"{dtype}-{kv_dtype}{'-bits' if bits else ''}",
            reason="types of queries and cache, and a cache held as bits",
            rows=((140, 5), (11, 2), (0, 0)),
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
        dtype="bfloat16",
        kv_dtype="int8",
    ),
)
