"""Caches of 16- and 8-bit floats as bits: the same values, whoever asks."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import kv_storage_dtype
from pallas_kernels.storage import resolve_kv_dtype, to_float32, to_storage


@pytest.mark.parametrize(
    ("dtype", "platform", "storage"),
    [
        ("bfloat16", "cpu", "uint16"),
        ("float16", "cpu", "uint16"),
        ("float32", "cpu", "float32"),
        ("bfloat16", "tpu", "bfloat16"),
        ("float16", "gpu", "float16"),
        ("float8_e4m3fn", "cpu", "uint8"),
        ("float8_e5m2", "cpu", "uint8"),
        ("int8", "cpu", "int8"),
        ("float8_e5m2", "tpu", "float8_e5m2"),
    ],
)
def test_only_floats_below_32_bits_on_the_cpu_are_held_as_bits(dtype: str, platform: str, storage: str) -> None:
    assert kv_storage_dtype(dtype, platform=platform) == jnp.dtype(storage)


@pytest.mark.parametrize("kv_dtype", ["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"])
def test_every_bit_pattern_survives(kv_dtype: str) -> None:
    width = 8 * jnp.dtype(kv_dtype).itemsize
    bits = jnp.arange(2**width, dtype=jnp.uint32).astype(f"uint{width}")
    floats = jax.lax.bitcast_convert_type(bits, jnp.dtype(kv_dtype))
    values = to_float32(bits, kv_dtype=jnp.dtype(kv_dtype))
    np.testing.assert_array_equal(np.asarray(values), np.asarray(floats).astype(np.float32))
    number = ~np.isnan(np.asarray(values))
    again = to_storage(values, storage=bits.dtype, kv_dtype=jnp.dtype(kv_dtype))
    np.testing.assert_array_equal(np.asarray(again)[number], np.asarray(bits)[number])


def test_what_bits_hold() -> None:
    bits, floats = jnp.zeros(2, jnp.uint16), jnp.zeros(2, jnp.float16)
    assert resolve_kv_dtype(bits, jnp.zeros(2, jnp.float32), None) == jnp.bfloat16
    assert resolve_kv_dtype(bits, floats, None) == jnp.float16
    assert resolve_kv_dtype(bits, floats, jnp.bfloat16) == jnp.bfloat16
    assert resolve_kv_dtype(floats, bits, None) == jnp.float16
    assert resolve_kv_dtype(jnp.zeros(2, jnp.uint8), floats, None) == jnp.float8_e4m3fn
    assert resolve_kv_dtype(jnp.zeros(2, jnp.uint8), floats, jnp.float8_e5m2) == jnp.float8_e5m2
    with pytest.raises(ValueError, match="uint16 kv_pages hold bfloat16 or float16 bits"):
        resolve_kv_dtype(bits, floats, jnp.float32)
