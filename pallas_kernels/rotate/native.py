"""Heads turned in C++ on a CPU (`pallas_kernels/native/rotate.h`): one pass, where XLA makes halves and puts them together."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels import native


def supports(x: Any, cos: Any, sin: Any, **options: Any) -> str | None:
    """None, or which type it does not take, or that it is not registered."""
    if native.call_name(native.ROTATION) is None:
        return native.NOT_REGISTERED
    if any(array.dtype != jnp.float32 for array in (x, cos, sin)):
        return f"x, cos and sin are {x.dtype}, {cos.dtype} and {sin.dtype}; heads are turned in C++ in float32"
    return None


def rotate(x: jax.Array, cos: jax.Array, sin: jax.Array, *, projected: bool) -> jax.Array:
    """See the op's contract."""
    call: Any = jax.ffi.ffi_call(native.call_name(native.ROTATION) or "", jax.ShapeDtypeStruct(x.shape, x.dtype))
    turned: jax.Array = call(x, cos, sin)
    return turned
