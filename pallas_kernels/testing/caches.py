"""The cache of a case: pages as they are stored on a platform, and the scales of a quantised one."""

from __future__ import annotations

import functools
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from pallas_kernels.storage import HELD_AS_BITS, QUANTISED, join_heads, kv_page_shape, quantise
from pallas_kernels.testing.arrays import array

Array = NDArray[Any]


class CachedCase(Protocol):
    """What a case says of its cache: `kv_dtype` is the type of the values, `bits` stores them as unsigned integers."""

    @property
    def kv_heads(self) -> int: ...

    @property
    def head_size(self) -> int: ...

    @property
    def page_tokens(self) -> int: ...

    @property
    def kv_dtype(self) -> str: ...

    @property
    def bits(self) -> bool: ...


def stored(pages: Array, case: CachedCase, platform: str) -> jax.Array:
    """Plain pages `[pages, T, 2K, H]` as they are stored on `platform`."""
    _, channels, lanes = kv_page_shape(
        case.page_tokens, case.kv_heads, case.head_size, platform=platform, dtype=case.kv_dtype
    )
    return _store(pages, scales(case), channels=channels, lanes=lanes, kv_dtype=case.kv_dtype, bits=case.bits)


@functools.partial(jax.jit, static_argnames=("channels", "lanes", "kv_dtype", "bits"))
def _store(
    pages: jax.Array, by_type: jax.Array | None, *, channels: int, lanes: int, kv_dtype: str, bits: bool
) -> jax.Array:
    def held(values: jax.Array, of_heads: jax.Array | None) -> jax.Array:
        if of_heads is None:
            return values.astype(kv_dtype)
        unwritten = jnp.isnan(values) & (kv_dtype == "int8")  # which has no NaN
        return jnp.where(unwritten, 127, quantise(values, of_heads[:, None], kv_dtype)).astype(kv_dtype)

    keys, values = (held(pages[:, :, which::2], None if by_type is None else by_type[which]) for which in range(2))
    stored = join_heads(keys, values, channels=channels, lanes=lanes)
    return as_bits(stored) if bits else stored


def as_bits(stored: jax.Array) -> jax.Array:
    """As unsigned integers of the same size."""
    return jax.lax.bitcast_convert_type(
        stored, next(bits for bits in HELD_AS_BITS if bits.itemsize == stored.dtype.itemsize)
    )


def scales(case: CachedCase) -> jax.Array | None:
    """Scales with which the type's largest number is 1 to 8: heads differ, and some normally distributed values saturate."""
    if jnp.dtype(case.kv_dtype) not in QUANTISED:
        return None
    largest = 127.0 if case.kv_dtype == "int8" else float(jnp.finfo(case.kv_dtype).max)
    return array(np.random.default_rng(2).uniform(1, 8, (2, case.kv_heads)) / largest, jnp.float32)
