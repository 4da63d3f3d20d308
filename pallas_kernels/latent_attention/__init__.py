"""Attention of rows of new tokens over pages of latent vectors, which all heads share: the contract and its backends."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from pallas_kernels.checks import check_latent_rows
from pallas_kernels.dispatch import AUTO, Op
from pallas_kernels.storage import check_latent_scales, resolve_kv_dtype

OP = Op(
    "latent_attention",
    backends={name: f"{__name__}.{name}" for name in ("reference", "xla", "tpu", "gpu")},
    preferred={"tpu": ("tpu",), "gpu": ("gpu",)},
    portable="xla",
)


def latent_attention(
    q: jax.Array,
    pages: jax.Array,
    page_table: jax.Array,
    offsets: jax.Array,
    starts: jax.Array,
    *,
    scale: float,
    value_size: int,
    scales: jax.Array | None = None,
    kv_dtype: DTypeLike | None = None,
    backend: str = AUTO,
    platform: str | None = None,
) -> jax.Array:
    """Let every token of every row attend to the latent vectors of its own sequence up to and including itself.

    Each cached token has one vector that is the key of all heads, and whose first `value_size` numbers are their value
    (DeepSeek's multi-head latent attention, with the projections to heads drawn into queries and results). Rows, places, page
    tables and positions are those of `paged_attention`.

    Args:
        q: queries `[N, heads, D]`.
        pages: `[pages, 1, T, L]`, of each token `D` numbers and padding up to `L` (`latent_page_shape`). float32, bfloat16,
            float16, int8, float8_e4m3fn, float8_e5m2, or the bits of a 16- or 8-bit float (see `storage.py`).
        page_table: int32 `[B, P]`.
        offsets: int32 `[B + 1]`, the first place of each row, and behind them where the last row ends.
        starts: int32 `[B]`, the position of each row's first token.
        scale: factor of the scores.
        value_size: how many of the `D` numbers are the value.
        scales: float32 `[D]`, of pages of 8-bit values, and only there: a vector's numbers are what is stored times these.
            Queries and weights are rounded to bfloat16 to meet them, but by `reference`.
        kv_dtype: what pages of bits hold, as in `paged_attention`.
        backend: `auto`, or a name from the table; a named backend runs or raises.
        platform: of the compile target (`cpu`, `gpu`, `tpu`), for `auto`.

    Returns:
        `[N, heads, value_size]` in `q`'s dtype; zeros in the places of padding, whatever `q` holds there.

    Raises:
        ValueError: arguments that do not fit together, naming the axis, or an unknown backend.
        KernelUnsupported: the named backend cannot do this case.
    """
    check_latent_rows(q, pages, page_table, offsets, starts, value_size=value_size)
    kv_dtype = resolve_kv_dtype(pages, q, kv_dtype)
    check_latent_scales(scales, kv_dtype=kv_dtype, size=q.shape[2])
    # Factors of a vector's numbers are as well factors of the queries and, of its value, of the results.
    result: jax.Array = OP.run(
        backend,
        platform,
        q if scales is None else q.astype(jnp.float32) * scales,
        pages,
        page_table,
        offsets,
        starts,
        scale=scale,
        value_size=value_size,
        kv_dtype=kv_dtype,
    )
    return result if scales is None else (result * scales[:value_size]).astype(q.dtype)
