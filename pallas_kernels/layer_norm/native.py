"""The layer norm in C++ on a CPU (`pallas_kernels/native/norms.h`): one pass over rows in the first cache."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from pallas_kernels import native


def supports(x: Any, scale: Any, bias: Any, added: Any, *, dtype: DTypeLike, **options: Any) -> str | None:
    """None, or which types it does not take, or that it is not registered."""
    if native.call_name(native.LAYER_NORM) is None:
        return native.NOT_REGISTERED
    numbers = [jnp.dtype(each) for each in (x.dtype, dtype, *([] if added is None else [added.dtype]))]
    if any(each != jnp.float32 for each in numbers):
        return f"x, the result and what is added are {', '.join(map(str, numbers))}; the norm in C++ is of float32"
    types = {each.dtype for each in (scale, bias) if each is not None}
    if len(types) > 1 or not types <= {jnp.dtype(jnp.float32), jnp.dtype(jnp.bfloat16)}:
        return f"scale and bias are {' and '.join(map(str, types))}, not both float32 or bfloat16"
    return None


def layer_norm(
    x: jax.Array,
    scale: jax.Array | None,
    bias: jax.Array | None,
    added: jax.Array | None,
    *,
    epsilon: float,
    used: jax.Array | None,
    dtype: DTypeLike,
    platform: str | None,
) -> jax.Array:
    """See the op's contract."""
    rows = x.reshape(-1, x.shape[-1])
    call: Any = jax.ffi.ffi_call(
        native.call_name(native.LAYER_NORM) or "", jax.ShapeDtypeStruct(rows.shape, jnp.float32)
    )
    none = jnp.zeros(0, jnp.float32)
    sums = none if added is None else added.reshape(rows.shape)
    by_number = (none if given is None else given for given in (scale, bias))
    count = jnp.int32(len(rows)) if used is None else used
    normed: jax.Array = call(rows, sums, *by_number, count, epsilon=np.float32(epsilon))
    return normed.reshape(x.shape)
