"""Attention within rows of tokens, each of which sees its whole row, without a cache: the contract and its backends."""

from __future__ import annotations

import jax

from pallas_kernels.checks import check_equal, check_int32, check_rank
from pallas_kernels.dispatch import AUTO, Op
from pallas_kernels.row_attention.relative import Relative as Relative

OP = Op(
    "row_attention",
    backends={name: f"{__name__}.{name}" for name in ("reference", "xla", "native", "tpu")},
    preferred={"cpu": ("native",), "tpu": ("tpu",)},
    portable="xla",
)


def row_attention(
    q: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    offsets: jax.Array,
    *,
    scale: float,
    window: int | None = None,
    relative: Relative | None = None,
    backend: str = AUTO,
    platform: str | None = None,
) -> jax.Array:
    """Let every token attend to all tokens of its row, those before it and those after it.

    Rows lie one after the other in the `N` token places: row `i` has the places `offsets[i] .. offsets[i + 1] - 1`. Nothing of
    another row is used, nor of the padding behind the last one, whatever it is.

    Args:
        q: queries `[N, heads, H]`, float32 or bfloat16.
        keys: `[N, K, H]` of the same type; query heads `k*heads/K .. (k+1)*heads/K - 1` share KV head `k`.
        values: `[N, K, H]`.
        offsets: int32 `[B + 1]`, the first place of each row, and behind them where the last row ends. `offsets[0]` is 0 and they
            do not decrease; equal neighbours make an empty row.
        scale: factor of the scores.
        window: attend to tokens at most so many places before or after the token's own; None is all.
        relative: numbers added to the products of queries and keys, before `scale`, by their distance; not with fewer KV heads.
        backend: `auto`, or a name from the table; a named backend runs or raises.
        platform: of the compile target (`cpu`, `gpu`, `tpu`), for `auto`. Left out, `auto` is the backend that runs everywhere.

    Returns:
        `[N, heads, H]` in `q`'s dtype; zeros in the places of padding.

    Raises:
        ValueError: arguments that do not fit together, naming the axis, or an unknown backend.
        KernelUnsupported: the named backend cannot do this case.
    """
    check_rank(q=(q, "N heads H"), keys=(keys, "N K H"), values=(values, "N K H"), offsets=(offsets, "B+1"))
    check_int32(offsets=offsets)
    check_equal("N (places)", q=q.shape[0], keys=keys.shape[0], values=values.shape[0])
    check_equal("H (head size)", q=q.shape[2], keys=keys.shape[2], values=values.shape[2])
    check_equal("K (KV heads)", keys=keys.shape[1], values=values.shape[1])
    if q.shape[1] % keys.shape[1]:
        raise ValueError(f"axis heads: q has {q.shape[1]} query heads, which {keys.shape[1]} KV heads do not divide")
    if window is not None and window < 0:
        raise ValueError(f"window is {window}; it counts places on each side, so it is at least 0, or None for all")
    if relative is not None:
        check_equal("heads", q=q.shape[1], keys=keys.shape[1], of_queries=relative.of_queries.shape[1])
    result: jax.Array = OP.run(
        backend, platform, q, keys, values, offsets, scale=scale, window=window, relative=relative
    )
    return result
