"""What the assembly for numbers of 4 bits makes of bytes, run step by step as PTX defines it, is what conversions make of it."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from benchmarks.gpu_candidates.fours import OF_WORDS, TIMES, WAYS
from tests.pallas_kernels.test_gpu_numbers import run

KEPT = np.concatenate([np.roll(np.arange(256, dtype=np.uint8), place) for place in range(4)])
"""Every byte, in every place."""


def bfloat16s(registers: list[int]) -> np.ndarray:
    return np.array(registers, "<u4").view(ml_dtypes.bfloat16).astype(np.float64)


def halves(kept: np.ndarray, pairs: str) -> list[np.ndarray]:
    own = kept % 16, kept // 16
    return [half - 8.0 if pairs == "int4" else half.view(ml_dtypes.float4_e2m1fn).astype(np.float64) for half in own]


@pytest.mark.parametrize("pairs", list(TIMES))
def test_bytes_become_numbers_over_a_power_of_two(pairs: str) -> None:
    for way, number in zip(WAYS[pairs], halves(KEPT, pairs), strict=True):
        found = [register for word in KEPT.view("<u4") for register in run(way, int(word))]
        np.testing.assert_array_equal(bfloat16s(found) * TIMES[pairs], number)


@pytest.mark.parametrize("pairs", list(TIMES))
def test_a_byte_of_each_of_two_words_becomes_a_number(pairs: str) -> None:
    for ways, number in zip(OF_WORDS[pairs], halves(KEPT, pairs), strict=True):
        for byte, way in enumerate(ways):
            assert "$1, $2" in way
            two = KEPT.view("<u4").reshape(-1, 2)
            found = [run(way, int(second), first=int(first))[0] for first, second in two]
            np.testing.assert_array_equal(bfloat16s(found) * TIMES[pairs], number[byte::4])
