"""Attention within rows in C++ on a CPU (`pallas_kernels/native/row_attention.h`), in float32 whatever it is given.

A token's result is the same to the last bit whatever else is in the step, as that of `xla`, whose numbers differ from these.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels import native
from pallas_kernels.row_attention.relative import Relative


def supports(q: Any, *args: Any, relative: Relative | None, **options: Any) -> str | None:
    """None, or which numbers it does not read, or that it is not registered."""
    if relative is not None:
        return "it adds nothing to scores by distance"
    if native.call_name(native.ROW_ATTENTION) is None:
        return native.NOT_REGISTERED
    if q.dtype not in (jnp.bfloat16, jnp.float32):
        return f"queries are {q.dtype}, and it reads bfloat16 and float32"
    return None


def row_attention(
    q: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    offsets: jax.Array,
    *,
    scale: float,
    window: int | None,
    relative: Relative | None,
) -> jax.Array:
    """See the op's contract."""
    name = native.call_name(native.ROW_ATTENTION) or ""
    call: Any = jax.ffi.ffi_call(name, jax.ShapeDtypeStruct(q.shape, jnp.float32))
    attended: jax.Array = call(
        *(given.astype(jnp.float32) for given in (q, keys, values)),
        offsets,
        scale=np.float32(scale),
        window=np.int64(-1 if window is None else window),
    )
    return attended.astype(q.dtype)
