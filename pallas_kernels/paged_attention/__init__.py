"""Attention of rows of new tokens over a paged KV cache: the contract and its backends."""

from __future__ import annotations

from typing import Any

import jax
from jax.typing import DTypeLike

from pallas_kernels.checks import check_equal, check_int32, check_rank
from pallas_kernels.dispatch import AUTO, Op
from pallas_kernels.storage import check_pages_hold, check_scales, resolve_kv_dtype

OP = Op(
    "paged_attention",
    backends={name: f"{__name__}.{name}" for name in ("reference", "xla", "native", "tpu", "gpu")},
    preferred={"cpu": ("native",), "tpu": ("tpu",), "gpu": ("gpu",)},
    portable="xla",
)


def paged_attention(
    q: jax.Array,
    kv_pages: jax.Array,
    page_table: jax.Array,
    offsets: jax.Array,
    starts: jax.Array,
    *,
    scale: float,
    window: int | None = None,
    soft_cap: float | None = None,
    sinks: jax.Array | None = None,
    alibi_slopes: jax.Array | None = None,
    until: jax.Array | None = None,
    kv_scales: jax.Array | None = None,
    kv_dtype: DTypeLike | None = None,
    kv_heads: int | None = None,
    backend: str = AUTO,
    platform: str | None = None,
) -> jax.Array:
    """Let every token of every row attend to its own sequence up to and including itself.

    Rows lie one after the other in the `N` token places: row `i` has the places `offsets[i] .. offsets[i + 1] - 1`. Token `j` of
    row `i`, at place `offsets[i] + j`, stands at position `starts[i] + j` and attends to the positions `0 .. starts[i] + j` that
    the pages `page_table[i]` hold: position `p` lies in page `page_table[i, p // T]` at offset `p % T`. Several rows may belong
    to one sequence. Keys and values of all tokens must have been written before. Nothing that lies beyond what a row's tokens see
    is used, whatever it is: not the rest of the last page, nor the table's entries after it; of an empty row nothing at all.

    Args:
        q: queries `[N, heads, H]`.
        kv_pages: `[pages, T, 2K, H]`, channel `2k` the keys and `2k + 1` the values of KV head `k`; query heads
            `k*heads/K .. (k+1)*heads/K - 1` share it. float32, bfloat16, float16, int8, float8_e4m3fn, float8_e5m2, or the bits
            of a 16- or 8-bit float (see `storage.py`). Or `[pages, T, C, L]` as `kv_page_shape` says, with `kv_heads` given.
        page_table: int32 `[B, P]`.
        offsets: int32 `[B + 1]`, the first place of each row, and behind them where the last row ends. `offsets[0]` is 0 and they
            do not decrease; equal neighbours make an empty row. The places from `offsets[B]` on are padding.
        starts: int32 `[B]`, the position of each row's first token.
        scale: factor of the scores before anything else.
        window: attend to the last `window` positions only, the token's own included.
        soft_cap: replace a score `s` by `soft_cap * tanh(s / soft_cap)`.
        sinks: float `[heads]`, a score per head that takes part in the softmax and has no value.
        alibi_slopes: float `[heads]`; head `h`'s score of a key, soft cap included, gets `alibi_slopes[h] * (key's position -
            query's position)` added (ALiBi, Press et al. 2022).
        until: int32 `[N]`, the last position that the token at a place attends to, in place of its own; it does not decrease
            along a row. A picture's tokens that see each other have that of its last one (Gemma 3), and all tokens that attend to
            something written once have its last position (cross attention), wherever they stand. A `window` still begins where
            the token's own position says, and has to leave it something to see. What it means in padding is nothing.
        kv_scales: float32 `[2, K]`, of pages of 8-bit values, and only there: keys are what is stored times `kv_scales[0]`,
            values what is stored times `kv_scales[1]`. Queries and weights are rounded to bfloat16 to meet them, but by
            `reference`.
        kv_dtype: what pages of bits hold; when left out, float8_e4m3fn in uint8 pages, and in uint16 pages float16 for float16
            queries and bfloat16 otherwise.
        kv_heads: the number K of KV heads in `kv_pages`; when left out, half its channels.
        backend: `auto`, or a name from the table; a named backend runs or raises.
        platform: of the compile target (`cpu`, `gpu`, `tpu`), for `auto`. Left out, `auto` is the backend that runs everywhere.

    Returns:
        `[N, heads, H]` in `q`'s dtype; zeros in the places of padding, whatever `q` holds there.

    Raises:
        ValueError: arguments that do not fit together, naming the axis, or an unknown backend.
        KernelUnsupported: the named backend cannot do this case.
    """
    check_rank(q=(q, "N heads H"), kv_pages=(kv_pages, "pages T C L"))
    kv_heads = kv_pages.shape[2] // 2 if kv_heads is None else kv_heads
    _check(q, kv_pages, page_table, offsets, starts, kv_heads=kv_heads, window=window, soft_cap=soft_cap)
    for name, by_head in (("sinks", sinks), ("alibi_slopes", alibi_slopes)):
        if by_head is not None:
            check_rank(**{name: (by_head, "heads")})
            check_equal("heads (query heads)", **{"q": q.shape[1], name: by_head.shape[0]})
    if until is not None:
        check_rank(until=(until, "N"))
        check_int32(until=until)
        check_equal("N (places)", q=q.shape[0], until=until.shape[0])
    kv_dtype = resolve_kv_dtype(kv_pages, q, kv_dtype)
    check_scales(kv_scales, kv_dtype=kv_dtype, kv_heads=kv_heads)
    result: jax.Array = OP.run(
        backend,
        platform,
        q,
        kv_pages,
        page_table,
        offsets,
        starts,
        scale=scale,
        window=window,
        soft_cap=soft_cap,
        sinks=sinks,
        alibi_slopes=alibi_slopes,
        until=until,
        kv_scales=kv_scales,
        kv_dtype=kv_dtype,
        kv_heads=kv_heads,
    )
    return result


def _check(
    q: Any,
    kv_pages: Any,
    page_table: Any,
    offsets: Any,
    starts: Any,
    *,
    kv_heads: int,
    window: int | None,
    soft_cap: float | None,
) -> None:
    check_rank(page_table=(page_table, "B P"), offsets=(offsets, "B+1"), starts=(starts, "B"))
    check_int32(page_table=page_table, offsets=offsets, starts=starts)
    check_equal("B (rows)", page_table=page_table.shape[0], starts=starts.shape[0])
    check_equal("B+1 (rows and one)", page_table=page_table.shape[0] + 1, offsets=offsets.shape[0])
    check_pages_hold(kv_pages, kv_heads=kv_heads, head_size=q.shape[2], operand="q")
    heads = q.shape[1]
    if heads % kv_heads:
        raise ValueError(f"axis heads: q has {heads} query heads, which {kv_heads} KV heads do not divide")
    if window is not None and window < 1:
        raise ValueError(f"window is {window}; it counts the token itself, so it is at least 1, or None for no window")
    if soft_cap is not None and not soft_cap > 0:
        raise ValueError(f"soft_cap is {soft_cap}; it must be above 0, or None for no cap")
