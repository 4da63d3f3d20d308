"""Which cached tokens each token attends to, by an indexer's scores: the contract and its backends."""

from __future__ import annotations

import jax
from jax.typing import DTypeLike

from pallas_kernels.checks import check_equal, check_int32, check_rank
from pallas_kernels.dispatch import AUTO, Op
from pallas_kernels.storage import resolve_kv_dtype

OP = Op(
    "choose_tokens",
    backends={name: f"{__name__}.{'xla' if name == 'gpu' else name}" for name in ("reference", "xla", "tpu", "gpu")},
    preferred={"tpu": ("tpu",)},
    portable="xla",
)


def choose_tokens(
    q: jax.Array,
    weights: jax.Array,
    pages: jax.Array,
    page_table: jax.Array,
    offsets: jax.Array,
    starts: jax.Array,
    *,
    count: int,
    kv_dtype: DTypeLike | None = None,
    backend: str = AUTO,
    platform: str | None = None,
) -> jax.Array:
    """For every token of every row choose `count` tokens of its own sequence up to and including itself.

    A token scores each of them by `sum over h of weights[h] * max(0, q[h] . key)` in float32 (the lightning indexer of DeepSeek
    V3.2) and takes those with the highest scores; of equal ones those at the lowest positions, -0 and 0 being equal. Rows,
    places, page tables and positions are those of `latent_attention`.

    Args:
        q: queries of the indexer's heads `[N, heads, D]`.
        weights: float32 `[N, heads]`.
        pages: the keys, `[pages, 1, T, L]` as in `latent_attention`; of no quantised type.
        page_table: int32 `[B, P]`.
        offsets: int32 `[B + 1]`.
        starts: int32 `[B]`.
        count: how many, where there are so many.
        kv_dtype: what pages of bits hold.
        backend: `auto`, or a name from the table; a named backend runs or raises.
        platform: of the compile target, for `auto`.

    Returns:
        Positions, int32 `[N, C]`, ascending; `C` is `count`, or what a page table holds where that is less. A token that sees
        `count` tokens or fewer has the positions from 0 on, those after its own included. What padding has means nothing.

    Raises:
        ValueError: arguments that do not fit together, naming the axis, or an unknown backend.
        KernelUnsupported: the named backend cannot do this case.
    """
    check_rank(q=(q, "N heads D"), weights=(weights, "N heads"), pages=(pages, "pages 1 T L"))
    check_rank(page_table=(page_table, "B P"), offsets=(offsets, "B+1"), starts=(starts, "B"))
    check_int32(page_table=page_table, offsets=offsets, starts=starts)
    check_equal("N (places)", q=q.shape[0], weights=weights.shape[0])
    check_equal("heads", q=q.shape[1], weights=weights.shape[1])
    check_equal("B (rows)", page_table=page_table.shape[0], starts=starts.shape[0])
    check_equal("B+1 (rows and one)", page_table=page_table.shape[0] + 1, offsets=offsets.shape[0])
    if q.shape[2] > pages.shape[3]:
        raise ValueError(f"axis L of pages is {pages.shape[3]}: keys of {q.shape[2]} numbers do not fit")
    if count < 1:
        raise ValueError(f"count is {count}; a token attends to one at least")
    kv_dtype = resolve_kv_dtype(pages, q, kv_dtype)
    count = min(count, page_table.shape[1] * pages.shape[2])
    chosen: jax.Array = OP.run(
        backend, platform, q, weights, pages, page_table, offsets, starts, count=count, kv_dtype=kv_dtype
    )
    return chosen
