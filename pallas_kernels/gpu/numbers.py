"""Numbers of 4 and 8 bits inside of GPU kernels, as bfloat16, which holds them all exactly, without converting instructions.

Converting an integer or a float8 runs at an eighth of the rate of other instructions. Bits are shifted to where bfloat16 has its
own instead, two numbers to a register, and made right by one multiplication and addition, which is exact:

    int4            128 is 0x4300, and 128 + v is 0x4300 | v, for v above -8: less 136
    int8            128 and its lower seven bits, less 128, or less 256 where it is negative: 0x4300 | its sign's bit
    float8, float4  sign, exponent and mantissa in their places are the number times a power of two, subnormal ones included

What is no number in float8 becomes one: matrices have none. Interpreted, the same numbers come from plain conversions.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import triton as plgpu
from jax.typing import DTypeLike

from pallas_kernels.gpu.device import interpreted
from pallas_kernels.scaled_matmul.dense import halves


@dataclasses.dataclass(frozen=True, slots=True)
class Apart:
    """How four bytes `$2` become four numbers of bfloat16, in `$0` and `$1`, in PTX for compute capability 8.0 and later.

    `spread` are the orders in which `prmt` lays bytes and zeros out, two bytes to a register `a`; `steps` make `{to}` of it with
    the registers `b` and `c`; the registers `f` and `g` hold `factor` and `addend`, two of bfloat16 each.
    """

    spread: tuple[int, int]
    steps: str
    factor: int
    addend: int = 0x80008000  # -0, which leaves every product as it is

    @property
    def assembly(self) -> str:
        start = f".reg .b32 a, b, c, f, g; mov.b32 f, {self.factor:#010x}; mov.b32 g, {self.addend:#010x};"
        both = (
            f"prmt.b32 a, $2, 0, {order:#06x}; {self.steps.format(to=f'${number}')}"
            for number, order in enumerate(self.spread)
        )
        return f"{{ {start} {' '.join(both)} }}"


LOW, HIGH, TWICE = (0x4140, 0x4342), (0x1404, 0x3424), (0x1100, 0x3322)
"""Bytes in the lower or the higher half of 16 bits, or in both."""
LAST = "fma.rn.bf16x2 {to}, b, f, g;"


def _float(spread: tuple[int, int], shift: int, mask: int, times: int, sign: int = 0) -> Apart:
    """Exponent and mantissa are shifted to the right, signs to the left; the number is `2^times` as large as that."""
    signs = f"shl.b32 c, a, {sign}; and.b32 c, c, 0x80008000;" if sign else "and.b32 c, a, 0x80008000;"
    steps = f"shr.u32 b, a, {shift}; and.b32 b, b, {mask:#010x}; {signs} or.b32 b, b, c; {LAST}"
    return Apart(spread, steps, (127 + times << 7) * 0x10001)


def _int4(first: str) -> Apart:
    return Apart(LOW, f"{first} and.b32 b, b, 0x000f000f; or.b32 b, b, 0x43004300; {LAST}", 0x3F803F80, 0xC308C308)


INT4 = _int4("mov.b32 b, a;"), _int4("shr.u32 b, a, 4;")
FLOAT4 = _float(TWICE, 2, 0x01C001C0, 126, sign=4), _float(TWICE, 6, 0x01C001C0, 126)
INT8 = Apart(
    LOW,
    "and.b32 b, a, 0x007f007f; or.b32 b, b, 0x43004300; and.b32 c, a, 0x00800080; or.b32 c, c, 0x43004300; "
    "fma.rn.bf16x2 {to}, c, f, b;",
    0xBF80BF80,
)
FLOAT8 = {
    jnp.dtype(jnp.float8_e4m3fn): _float(HIGH, 4, 0x07F007F0, 120),
    jnp.dtype(jnp.float8_e5m2): _float(HIGH, 3, 0x0FE00FE0, 112),
}


def ways(dtype: DTypeLike, pairs: str) -> tuple[Apart, ...]:
    """Those that take bytes of a matrix apart: of two numbers to a byte the lower's first."""
    if jnp.dtype(dtype) == jnp.uint8:
        return INT4 if pairs == "int4" else FLOAT4
    return (INT8 if jnp.dtype(dtype) == jnp.int8 else FLOAT8[jnp.dtype(dtype)],)


def as_bytes(kept: jax.Array) -> jax.Array:
    """What kernels are given of a matrix: uint8, of the same shape."""
    return lax.bitcast_convert_type(kept, jnp.uint8)


def numbers(kept: jax.Array, dtype: DTypeLike, *, pairs: str) -> tuple[jax.Array, ...]:
    """Those of bytes `[A, B]` of `dtype`, as bfloat16 `[A, B]`: one array, or two of two to a byte."""
    if interpreted():
        own = halves(kept, pairs) if dtype == jnp.uint8 else (lax.bitcast_convert_type(kept, dtype),)
        return tuple(number.astype(jnp.bfloat16) for number in own)
    result = jax.ShapeDtypeStruct(kept.shape, jnp.bfloat16)
    found: list[jax.Array] = []
    for way in ways(dtype, pairs):
        found += plgpu.elementwise_inline_asm(
            way.assembly, args=[kept], constraints="=&r,=&r,r", pack=4, result_shape_dtypes=[result]
        )
    return tuple(found)
