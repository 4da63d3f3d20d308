"""Each channel's partner fetched by a matrix product, which is exact: one factor is 1 or -1, all others 0.

A TPU has vectors of 128 lanes. Halves of a head are copied apart and together again, and tokens to where heads were for it; a
product keeps both in place.

What attention gets has the heads of a token in one tile, what a projection gives has tokens in one. `tpu_kernel.py` turns many
tokens' heads on the way from the one to the other. Elsewhere they are turned where they are, and XLA moves them afterwards. Where
heads are normalised before, that pass moves them for nothing, and is best left alone.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.layout import Layout, with_layout_constraint

from pallas_kernels.rotate import tpu_kernel

SUBLANES = 8  # rows of a tile of a TPU
HEADS_APART = Layout((1, 0, 2))


def supports(*args: Any, **options: Any) -> str | None:
    """None: it is XLA's own code, for any shape."""
    return None


def rotate(x: jax.Array, cos: jax.Array, sin: jax.Array, *, projected: bool) -> jax.Array:
    """See the op's contract."""
    if projected and tpu_kernel.takes(x):
        return tpu_kernel.turn(x, cos[:, 0], sin[:, 0])
    tokens, heads, size = x.shape
    cos, sin = (jnp.concatenate([half, half], axis=-1)[:, 0] for half in (cos, sin))
    partner = jnp.asarray(np.kron([[0, 1], [-1, 0]], np.eye(size // 2)), x.dtype)
    rows = SUBLANES if tokens % SUBLANES == 0 else 1
    by_head = x.reshape(-1, rows, heads, size).transpose(2, 0, 1, 3).reshape(heads, tokens, size)  # whole tiles move
    partners = jnp.einsum(
        "hnc,cd->hnd", by_head, partner, precision=jax.lax.Precision.HIGHEST, preferred_element_type=jnp.float32
    )
    turned = (by_head * cos + partners * sin).astype(x.dtype).swapaxes(0, 1)
    return with_layout_constraint(turned, HEADS_APART) if projected else turned
