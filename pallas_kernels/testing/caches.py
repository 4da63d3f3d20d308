"""The cache of a case: pages as they are stored on a platform, and the scales of a quantised one."""

from __future__ import annotations

from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from pallas_kernels.storage import HELD_AS_BITS, QUANTISED, join_heads, kv_page_shape, quantise

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
    by_type = scales(case)
    keys, values = jnp.asarray(pages[:, :, 0::2]), jnp.asarray(pages[:, :, 1::2])
    if by_type is None:
        keys, values = keys.astype(case.kv_dtype), values.astype(case.kv_dtype)
    else:
        kv_dtype = jnp.dtype(case.kv_dtype)
        keys, values = (
            jnp.where(
                jnp.isnan(plain) & (kv_dtype == jnp.int8), 127, quantise(plain, by_head[:, None], kv_dtype)
            ).astype(kv_dtype)
            for plain, by_head in ((keys, by_type[0]), (values, by_type[1]))
        )
    stored = join_heads(keys, values, channels=channels, lanes=lanes)
    bits = next(bits for bits in HELD_AS_BITS if bits.itemsize == stored.dtype.itemsize) if case.bits else None
    return stored if bits is None else jax.lax.bitcast_convert_type(stored, bits)


def scales(case: CachedCase) -> jax.Array | None:
    """Scales with which the type's largest number is 1 to 8: heads differ, and some normally distributed values saturate."""
    if jnp.dtype(case.kv_dtype) not in QUANTISED:
        return None
    largest = 127.0 if case.kv_dtype == "int8" else float(jnp.finfo(case.kv_dtype).max)
    return jnp.asarray(np.random.default_rng(2).uniform(1, 8, (2, case.kv_heads)) / largest, jnp.float32)
