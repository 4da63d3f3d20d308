"""The norm in C++ on a CPU (`pallas_kernels/native/norms.h`): XLA needs four passes, one of them a product with ones."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from pallas_kernels import native


def supports(x: Any, scale: Any, *, dtype: DTypeLike, **options: Any) -> str | None:
    """None, or which type it does not take, or that it is not registered."""
    if native.call_name(native.RMS_NORM) is None:
        return native.NOT_REGISTERED
    if x.dtype != jnp.float32 or jnp.dtype(dtype) != jnp.float32:
        return f"x is {x.dtype} and the result {jnp.dtype(dtype)}; the norm in C++ is of float32"
    if scale is not None and scale.dtype not in (jnp.float32, jnp.bfloat16):
        return f"scale is {scale.dtype}, not float32 or bfloat16"
    return None


def rms_norm(
    x: jax.Array,
    scale: jax.Array | None,
    *,
    epsilon: float,
    offset: float,
    dtype: DTypeLike,
    platform: str | None,
) -> jax.Array:
    """See the op's contract."""
    rows = x.reshape(-1, x.shape[-1])
    call: Any = jax.ffi.ffi_call(native.call_name(native.RMS_NORM) or "", jax.ShapeDtypeStruct(rows.shape, jnp.float32))
    of_scale = jnp.zeros(0, jnp.float32) if scale is None else scale
    normed: jax.Array = call(rows, of_scale, epsilon=np.float32(epsilon), offset=np.float32(offset))
    return normed.reshape(x.shape)
