"""Latent attention to chosen tokens of a sequence only: the contract and its backends."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from pallas_kernels.checks import check_equal, check_int32, check_latent_rows, check_rank
from pallas_kernels.dispatch import AUTO, Op
from pallas_kernels.storage import check_latent_scales, resolve_kv_dtype

OP = Op(
    "chosen_attention",
    backends={name: f"{__name__}.{'xla' if name == 'gpu' else name}" for name in ("reference", "xla", "tpu", "gpu")},
    preferred={"tpu": ("tpu",)},
    portable="xla",
)


def chosen_attention(
    q: jax.Array,
    pages: jax.Array,
    page_table: jax.Array,
    offsets: jax.Array,
    starts: jax.Array,
    chosen: jax.Array,
    *,
    scale: float,
    value_size: int,
    scales: jax.Array | None = None,
    kv_dtype: DTypeLike | None = None,
    backend: str = AUTO,
    platform: str | None = None,
) -> jax.Array:
    """Let every token attend to those latent vectors of its own sequence that were chosen for it, up to and including itself.

    Args but `chosen`, results and errors are those of `latent_attention`.

    Args:
        chosen: positions, int32 `[N, C]`, ascending, as `choose_tokens` gives them; those after a token's own do not count.
    """
    check_latent_rows(q, pages, page_table, offsets, starts, value_size=value_size)
    check_rank(chosen=(chosen, "N C"))
    check_int32(chosen=chosen)
    check_equal("N (places)", q=q.shape[0], chosen=chosen.shape[0])
    kv_dtype = resolve_kv_dtype(pages, q, kv_dtype)
    check_latent_scales(scales, kv_dtype=kv_dtype, size=q.shape[2])
    # As in `latent_attention`.
    result: jax.Array = OP.run(
        backend,
        platform,
        q if scales is None else q.astype(jnp.float32) * scales,
        pages,
        page_table,
        offsets,
        starts,
        chosen,
        scale=scale,
        value_size=value_size,
        kv_dtype=kv_dtype,
    )
    return result if scales is None else (result * scales[:value_size]).astype(q.dtype)
