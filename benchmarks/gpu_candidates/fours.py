"""Numbers of 4 bits inside of GPU kernels as bfloat16, some over a power of two, in fewer instructions than in `numbers.py`.

A bfloat16 whose exponent is 0 or 1 is its bits times 2^-133: eight bits that are an integer at once. One multiplication and
addition makes such numbers normal, exactly. So nothing has to be set beside them, and the higher numbers of bytes need no shift:

    int4    `v + 8` in bits 0 to 3 times 2^127, or in bits 4 to 7 times 2^123, becomes `v / 64`
    float4  one integer multiplication puts the sign and the other three bits in their places; then it is the number over 2^126

What results are to be multiplied by goes into the scales.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas import triton as plgpu

from pallas_kernels.gpu.device import interpreted
from pallas_kernels.scaled_matmul.dense import halves

TIMES = {"int4": 64, "float4_e2m1fn": 1}
"""What products are to be multiplied by, by `pairs`."""


def _assembly(pairs: str, half: int, spread: tuple[tuple[str, str], ...]) -> str:
    """`spread`: which register two numbers become, and the `prmt` that lays their bytes out, in 16 bits each."""
    if pairs == "int4":
        factor, addend = 2.0 ** (123 if half else 127), -8 / TIMES[pairs]
        place = f"and.b32 a, a, {0x00F000F0 if half else 0x000F000F:#010x};"
    else:
        factor, addend = 2.0**126, -0.0  # which leaves every product as it is
        place = (
            f"and.b32 a, a, {0x00F000F0 if half else 0x000F000F:#010x}; mul.lo.u32 a, a, {0x104 if half else 0x1040:#x}; "
            "and.b32 a, a, 0x81c081c0;"
        )
    f, g = (int(np.float32(number).view(np.uint32)) >> 16 for number in (factor, addend))
    start = f".reg .b32 a, f, g; mov.b32 f, {f * 0x10001:#010x}; mov.b32 g, {g * 0x10001:#010x};"
    return f"{{ {start} {' '.join(f'{order} {place} fma.rn.bf16x2 {to}, a, f, g;' for to, order in spread)} }}"


IN_ORDER = ("$0", "prmt.b32 a, $2, 0, 0x4140;"), ("$1", "prmt.b32 a, $2, 0, 0x4342;")
WAYS = {pairs: tuple(_assembly(pairs, half, IN_ORDER) for half in range(2)) for pairs in TIMES}
"""How four bytes `$2` become four numbers of bfloat16, in `$0` and `$1`: their lower ones, and their higher ones."""
OF_WORDS = {
    pairs: tuple(
        tuple(_assembly(pairs, half, (("$0", f"prmt.b32 a, $1, $2, 0x0{4 + byte}0{byte};"),)) for byte in range(4))
        for half in range(2)
    )
    for pairs in TIMES
}
"""How one byte of each of the words `$1` and `$2` becomes two numbers of bfloat16 in `$0`."""


def fours(kept: jax.Array, pairs: str) -> tuple[jax.Array, jax.Array]:
    """The lower and the higher numbers of bytes `[A, B]` over `TIMES`, as bfloat16 `[A, B]`."""
    if interpreted():
        low, high = ((number.astype(jnp.float32) / TIMES[pairs]).astype(jnp.bfloat16) for number in halves(kept, pairs))
        return low, high
    low, high = (_computed(way, kept, "=&r,=&r,r", pack=4) for way in WAYS[pairs])
    return low, high


def fours_of_words(words: jax.Array, pairs: str) -> list[list[jax.Array]]:
    """Of words `[A, B]` of four bytes: `[half][byte]`, the lower and the higher numbers over `TIMES`, as bfloat16 `[A, B]`."""
    if interpreted():
        each = [fours((words >> 8 * byte).astype(jnp.uint8), pairs) for byte in range(4)]
        return [[both[half] for both in each] for half in range(2)]
    return [[_computed(way, words, "=r,r,r", pack=2) for way in ways] for ways in OF_WORDS[pairs]]


def _computed(way: str, kept: jax.Array, constraints: str, *, pack: int) -> jax.Array:
    """One result: Triton computes only such assembly in the registers that products read, others pass shared memory."""
    result = jax.ShapeDtypeStruct(kept.shape, jnp.bfloat16)
    [found] = plgpu.elementwise_inline_asm(
        way, args=[kept], constraints=constraints, pack=pack, result_shape_dtypes=[result]
    )
    return found
