"""The CPU's product in C++ (`pallas_kernels/native/scaled.h`), of bfloat16.

With integers and float4 it is in fixed point (`fixed.h`): rows become integers, by blocks of some inputs at most or of a group's
(`rounding`), and no number of the matrix is rounded. Beside numbers of 4 bits rows have 8, the nearest of 127 steps of a block's
largest input, as in llama.cpp; `benchmarks/rounded_rows.py` says what that costs. Beside int8 they have 16: an output is off by
no more than the 65,536th of a block's largest input times the sum of the matrix' magnitudes, beside what float32 rounds. A row
with what is not finite is NaN. With float8 a few outputs at a time are made bfloat16, and bits are those of `matmul`'s backend of
this name with the dense matrix.
`benchmarks/cpu_matmul.py` times both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from pallas_kernels import native
from pallas_kernels.matmul import native as dense
from pallas_kernels.scaled_matmul.dense import floats

_CHUNK, _TOGETHER, _FACTOR_BYTES, _LINE = 32, 4, 20, 64


def supports(
    x: Any, weight: Any, scales: Any, zeros: Any, *, group: int, compute: DTypeLike, **options: Any
) -> str | None:
    """None, or which type it does not multiply, or that it is not registered."""
    if native.call_name(native.SCALED_PRODUCT) is None:
        return native.NOT_REGISTERED
    if jnp.dtype(compute) != jnp.bfloat16:
        return f"compute is {jnp.dtype(compute)}; the product in C++ is of bfloat16"
    if scales.dtype == jnp.uint8 and jnp.issubdtype(weight.dtype, jnp.floating):
        return f"scales in bytes of {weight.dtype}"
    return None


def scaled_matmul(
    x: jax.Array,
    weight: jax.Array,
    scales: jax.Array,
    zeros: jax.Array | None,
    *,
    group: int,
    compute: DTypeLike,
    pairs: str,
    round_rows: bool,
    precision: jax.lax.Precision,
    used: jax.Array | None = None,
    factors: jax.Array | None = None,
) -> jax.Array:
    """See the op's contract. `precision` changes nothing: products are never rounded."""
    return products(
        x, (weight,), (scales,), (zeros,), (factors,), group=group, compute=compute, pairs=pairs, used=used
    )[0]


def products(
    x: jax.Array,
    weights: Sequence[jax.Array],
    scales: Sequence[jax.Array],
    zeros: Sequence[jax.Array | None],
    factors: Sequence[jax.Array | None],
    *,
    group: int,
    compute: DTypeLike,
    pairs: str,
    used: jax.Array | None = None,
) -> tuple[jax.Array, ...]:
    """`x` times each of the weights, which are of one type, all with zeros or all without, in one call.

    Rows that are not `used` get zeros.
    """
    inputs, of_weights = x.shape[-1], weights[0].dtype
    rows = x.reshape(-1, inputs).astype(compute)
    kept, subtracted = zip(*map(_as_kept, scales, zeros), strict=True)
    results = (
        *(jax.ShapeDtypeStruct((len(rows), of_outputs.shape[1]), jnp.float32) for of_outputs in scales),
        jax.ShapeDtypeStruct((scratch_bytes(len(rows), inputs, of_weights, group),), jnp.uint8),
    )
    call: Any = jax.ffi.ffi_call(native.call_name(native.SCALED_PRODUCT) or "", results)
    count = jnp.int32(len(rows)) if used is None else used
    of_outputs = map(_of_outputs, scales, factors)
    *found, _ = call(rows, count, *weights, *kept, *subtracted, *of_outputs, group=group, float4=pairs != "int4")
    return tuple(each.reshape(*x.shape[:-1], -1) for each in found)


def _of_outputs(scales: jax.Array, factors: jax.Array | None) -> jax.Array:
    """What products are multiplied by: the factors, a scale of all inputs, or both."""
    if factors is None:
        return jnp.zeros(0, jnp.float32) if len(scales) > 1 else floats(scales)
    return jnp.broadcast_to(factors, scales.shape[1:]) if len(scales) > 1 else floats(scales[0]) * factors


def _as_kept(scales: jax.Array, zeros: jax.Array | None) -> tuple[jax.Array, jax.Array]:
    """What the call takes: of one type, none where there are none, or where scales are factors of the results."""
    if len(scales) == 1:
        taken = jnp.zeros(0, jnp.float32) if zeros is None else floats(zeros)
        return jnp.ones_like(taken), taken
    factors, subtracted = as_read(scales, zeros)
    return factors, jnp.zeros(0, factors.dtype) if subtracted is None else subtracted


def as_read(scales: jax.Array, zeros: jax.Array | None) -> tuple[jax.Array, jax.Array | None]:
    """Scales and zeros in types that the library reads: bytes, bfloat16 or float32."""
    if scales.dtype == jnp.uint8:
        return scales, zeros
    kept = jnp.bfloat16 if scales.dtype == jnp.bfloat16 else jnp.float32
    return scales.astype(kept), None if zeros is None else zeros.astype(kept)


def scratch_bytes(rows: int, inputs: int, weight: Any, group: int) -> int:
    """What `scaled_bytes` of scaled.h says, at most, and a line of the caches, where they may begin."""
    if jnp.issubdtype(weight, jnp.floating):
        return dense.scratch_bytes(rows, inputs, jnp.bfloat16)
    group = min(group, inputs)
    block, bits = rounding(weight)
    blocks = -(-inputs // group) * -(-group // block)
    place = -(-min(group, block) // _CHUNK) * _CHUNK
    return blocks * ((rows + _TOGETHER - 1) * _FACTOR_BYTES + rows * place * bits // 8) + _LINE


def rounding(weight: Any) -> tuple[int, int]:
    """How many inputs of a row have a scale in common, at most, and of how many bits its integers are, beside this type."""
    return (128, 8) if weight == jnp.uint8 else (256, 16)
