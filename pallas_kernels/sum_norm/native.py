"""The layer norm of a sum in C++ on a CPU (`pallas_kernels/native/norms.h`): one pass over rows in the first cache."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels import native


def supports(*args: Any, **options: Any) -> str | None:
    """None, or that it is not registered."""
    return native.NOT_REGISTERED if native.call_name(native.SUM_NORM) is None else None


def sum_norm(
    x: jax.Array,
    y: jax.Array,
    scale: jax.Array | None,
    bias: jax.Array | None,
    *,
    epsilon: float,
    used: jax.Array | None,
    platform: str | None,
) -> jax.Array:
    """See the op's contract."""
    call: Any = jax.ffi.ffi_call(native.call_name(native.SUM_NORM) or "", jax.ShapeDtypeStruct(x.shape, jnp.float32))
    none = jnp.zeros(0, jnp.float32)
    count = jnp.int32(len(x)) if used is None else used
    by_number = (none if given is None else given for given in (scale, bias))
    normed: jax.Array = call(x, y, *by_number, count, epsilon=np.float32(epsilon))
    return normed
