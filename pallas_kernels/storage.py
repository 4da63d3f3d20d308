"""How the values of a KV cache lie in memory.

The CPU compiler of jax 0.10 writes into a 16-bit float array by converting the whole of it to float32 and back: 80 ms for a
cache of 67 MB, whatever the number of tokens written (jax 0.12 no longer does). The same bits held as uint16 are written in place
in well under a millisecond. So on the CPU a 16-bit cache is an array of bits, and which float they are is said by `kv_dtype`.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

BITS = jnp.dtype(jnp.uint16)
SIXTEEN_BIT_FLOATS = (jnp.dtype(jnp.bfloat16), jnp.dtype(jnp.float16))
KV_DTYPES = (*SIXTEEN_BIT_FLOATS, jnp.dtype(jnp.float32))


def kv_storage_dtype(dtype: DTypeLike, *, platform: str) -> Any:
    """The dtype in which to allocate a cache of `dtype` values on `platform`: uint16 bits for a 16-bit float on the CPU."""
    dtype = jnp.dtype(dtype)
    return BITS if platform == "cpu" and dtype in SIXTEEN_BIT_FLOATS else dtype


def resolve_kv_dtype(kv_pages: Any, operand: Any, kv_dtype: DTypeLike | None) -> Any:
    """The float type of the values in `kv_pages`.

    Pages of a float type say it themselves. Pages of bits hold `kv_dtype`; without it, float16 when `operand` (the queries,
    or the keys to write) is float16, and bfloat16 otherwise.

    Raises:
        ValueError: `kv_dtype` contradicts the pages, or is not a float type.
    """
    stored = jnp.dtype(kv_pages.dtype)
    if stored != BITS:
        if kv_dtype is not None and jnp.dtype(kv_dtype) != stored:
            raise ValueError(
                f"kv_dtype is {jnp.dtype(kv_dtype)}, but kv_pages hold {stored}; only uint16 pages need kv_dtype"
            )
        return stored
    if kv_dtype is None:
        return jnp.dtype(jnp.float16 if jnp.dtype(operand.dtype) == jnp.float16 else jnp.bfloat16)
    if jnp.dtype(kv_dtype) not in SIXTEEN_BIT_FLOATS:
        raise ValueError(f"kv_dtype is {jnp.dtype(kv_dtype)}, but uint16 kv_pages hold bfloat16 or float16 bits")
    return jnp.dtype(kv_dtype)


def to_storage(values: jax.Array, *, storage: DTypeLike, kv_dtype: DTypeLike) -> jax.Array:
    """Round `values` to `kv_dtype` and return them as they are stored."""
    rounded = values.astype(kv_dtype)
    return jax.lax.bitcast_convert_type(rounded, BITS) if jnp.dtype(storage) == BITS else rounded


def to_float32(stored: jax.Array, *, kv_dtype: DTypeLike) -> jax.Array:
    """The stored values as float32, exactly."""
    if jnp.dtype(stored.dtype) != BITS:
        return stored.astype(jnp.float32)
    if jnp.dtype(kv_dtype) == jnp.bfloat16:
        # A bfloat16 is the upper half of a float32: a shift, which vectorises better than a conversion.
        return jax.lax.bitcast_convert_type(stored.astype(jnp.uint32) << jnp.uint32(16), jnp.float32)
    return jax.lax.bitcast_convert_type(stored, jnp.float16).astype(jnp.float32)
