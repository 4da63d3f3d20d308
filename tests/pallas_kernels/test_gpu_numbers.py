"""What GPU kernels' assembly makes of bytes, run step by step as PTX defines it, is what conversions make of them."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest

from pallas_kernels.gpu.numbers import ways

HALVES = "<u2"


def run(assembly: str, given: int, *, first: int = 0) -> tuple[int, int]:
    """`$0` and `$1` of instructions on 32 bits, given `$2`, and `first` in `$1`."""
    registers = {"$2": given, "$1": first}

    def value(operand: str) -> int:
        return registers[operand] if operand in registers else int(operand, 0)

    for line in re.sub(r"\.reg [^;]*;|[{}]", "", assembly).split(";"):
        if not line.strip():
            continue
        name, operands = line.strip().split(" ", 1)
        to, *sources = (part.strip() for part in operands.split(","))
        values = [value(source) for source in sources]
        registers[to] = INSTRUCTIONS[name](*values) & 0xFFFFFFFF
    return registers["$0"], registers["$1"]


def permute(low: int, high: int, order: int) -> int:
    own = low.to_bytes(4, "little") + high.to_bytes(4, "little")
    return sum(own[order >> 4 * place & 7] << 8 * place for place in range(4))


def multiply_add(one: int, other: int, added: int) -> int:
    """Of two bfloat16 each; float64 holds products and sums of such numbers exactly."""
    wide = [
        np.frombuffer(number.to_bytes(4, "little"), ml_dtypes.bfloat16).astype(np.float64)
        for number in (one, other, added)
    ]
    return int.from_bytes((wide[0] * wide[1] + wide[2]).astype(ml_dtypes.bfloat16).tobytes(), "little")


INSTRUCTIONS = {
    "mov.b32": lambda one: one,
    "and.b32": lambda one, other: one & other,
    "or.b32": lambda one, other: one | other,
    "mul.lo.u32": lambda one, other: one * other,
    "shl.b32": lambda one, by: one << by,
    "shr.u32": lambda one, by: one >> by,
    "prmt.b32": permute,
    "fma.rn.bf16x2": multiply_add,
}


@pytest.mark.parametrize(
    ("dtype", "pairs"),
    [
        ("uint8", "int4"),
        ("uint8", "float4_e2m1fn"),
        ("int8", "int4"),
        ("float8_e4m3fn", "int4"),
        ("float8_e5m2", "int4"),
    ],
)
def test_bits_become_the_same_bfloat16(dtype: str, pairs: str) -> None:
    """Every byte, in every place; zeros keep their signs."""
    kept = np.concatenate([np.roll(np.arange(256, dtype=np.uint8), place) for place in range(4)])
    words = np.frombuffer(kept.tobytes(), "<u4")
    expected = {
        "int4": [kept % 16 - 8.0, kept // 16 - 8.0],
        "float4_e2m1fn": [(kept % 16).view(ml_dtypes.float4_e2m1fn), (kept // 16).view(ml_dtypes.float4_e2m1fn)],
    }[pairs]
    if dtype != "uint8":
        expected = [kept.view(dtype)]
    for way, numbers in zip(ways(dtype, pairs), expected, strict=True):
        found = np.array([run(way.assembly, int(word)) for word in words], "<u4").view(ml_dtypes.bfloat16).reshape(-1)
        numbers = np.asarray(numbers).astype(ml_dtypes.bfloat16)
        real = np.isfinite(numbers.astype(np.float32))
        np.testing.assert_array_equal(found[real].view(np.uint16), numbers[real].view(np.uint16))
