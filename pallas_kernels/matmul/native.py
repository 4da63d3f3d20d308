"""The CPU's product in C++ (`pallas_kernels/native`): weights as they lie, with few rows in half the time of XLA's and less.

A row's sum is made in the same order by any thread, beside any rows. All three types and all numbers of rows are multiplied here:
XLA sums a row in another order, so the number of rows must not decide. Processor milliseconds of all threads for a matrix of
`[3072, 1024]`, XLA's and these (`benchmarks/cpu_matmul.py`, `cpu_ms`, jax 0.10.2), on two cores of a Xeon with AVX-512 VNNI that
other programs kept busy:

    rows              1           2           8          32         128         512        2,048
    bfloat16   2.9  1.1    2.8  1.2    3.7  2.0    6.8  4.2   18.8 13.1   70.5 54.5    281  270
    int8       1.5  0.6    1.5  0.5    2.1  0.9    4.7  2.3   15.6  7.9   45.8 27.2    204  124
    float32    5.0  1.5    5.1  1.6    5.8  2.5    8.1  5.5   16.6 14.7   56.0 58.7    212  219

On two busy cores of an EPYC with AVX-512 BF16, where float32 loses from 128 rows on (one row was read faster after this):

    rows              1           2           8          32         128         512        2,048
    bfloat16   0.9  0.7    0.9  0.7    1.2  0.9    2.0  1.6    5.2  4.8   16.4 17.9     63   69
    int8       0.6  0.4    0.6  0.4    0.8  0.5    2.0  1.1    6.2  3.0   22.4 11.8    100   44
    float32    1.6  1.1    1.6  1.1    2.1  1.4    4.1  3.9    9.8 11.6   31.9 38.3    142  162
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels import native

_ROUNDED = {"bfloat16": jnp.bfloat16, "float32": jnp.float32, "int8": jnp.float32}
"""What rows are given as, by the type of the weight."""

_PADDING, _ROW_SCALE_BYTES, _ROUNDED_BYTES = 64, 8, 2


def supports(
    x: jax.Array, weight: jax.Array, scales: jax.Array | None, *, precision: jax.lax.Precision | None = None
) -> str | None:
    """None, or which type it does not multiply, or that it is not registered."""
    if native.call_name(native.PRODUCT) is None:
        return native.NOT_REGISTERED
    if str(weight.dtype) not in _ROUNDED:
        return f"weight is of {weight.dtype}, and it multiplies {', '.join(_ROUNDED)}"
    return None


def matmul(
    x: jax.Array, weight: jax.Array, scales: jax.Array | None, *, precision: jax.lax.Precision | None = None
) -> jax.Array:
    """See the op's contract. `precision` changes nothing: products are never rounded."""
    outputs, inputs = weight.shape
    rows = x.reshape(-1, inputs).astype(_ROUNDED[str(weight.dtype)])
    results = (
        jax.ShapeDtypeStruct((len(rows), outputs), jnp.float32),
        jax.ShapeDtypeStruct((_scratch_bytes(len(rows), inputs, weight.dtype),), jnp.uint8),
    )
    call: Any = jax.ffi.ffi_call(native.call_name(native.PRODUCT) or "", results)
    sums: jax.Array = call(rows, weight, jnp.zeros(0, jnp.float32) if scales is None else scales)[0]
    return sums.reshape(*x.shape[:-1], outputs)


def _scratch_bytes(rows: int, inputs: int, dtype: Any) -> int:
    """What `prepared_bytes` of product.h says, at most."""
    padded = -(-inputs // _PADDING) * _PADDING
    each = _ROW_SCALE_BYTES + padded * _ROUNDED_BYTES if dtype == jnp.int8 else 4 * padded
    return rows * each
