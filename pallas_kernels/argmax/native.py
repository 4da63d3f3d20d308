"""In C++ on a CPU (`native/argmax.h`), which reads values once: XLA makes a largest value as long as its row."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels import native


def supports(*args: Any, **options: Any) -> str | None:
    """None, or that it is not registered."""
    return native.NOT_REGISTERED if native.call_name(native.ARGMAX) is None else None


def argmax(values: jax.Array, *, at_most: float, count: jax.Array | None) -> jax.Array:
    """See the op's contract."""
    call: Any = jax.ffi.ffi_call(
        native.call_name(native.ARGMAX) or "", jax.ShapeDtypeStruct(values.shape[:1], jnp.int32)
    )
    used = jnp.int32(len(values)) if count is None else count
    found: jax.Array = call(values, used, at_most=np.float32(at_most))
    return found
