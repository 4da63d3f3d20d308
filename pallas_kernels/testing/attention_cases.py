"""The cases of `paged_attention`."""

from __future__ import annotations

from pallas_kernels.storage import QUANTISED
from pallas_kernels.testing.attention import AttentionCase


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
