"""What the static roofline of latent attention makes of bundles."""

from __future__ import annotations

import pytest

from benchmarks.latents import Cut, cycles_of
from pallas_kernels.tpu.attention.blocks import Blocks
from xla_cache.chips import CHIPS

CHIP = CHIPS["v6e"]
COPY = 1280 / CHIP.memory_bandwidth * CHIP.clock_hz
"""Cycles in which a vector arrives."""


def decode(context: int, *, tile: int = 0, half: int = 0, whole: int = 0, cores: int = 1, heads: int = 1) -> float:
    blocks = Blocks(lengths=range(1, 2), pages=16, places=1, few=True, vmem_bytes=0)
    cut = Cut(tile=tile, block=0, halves=(half, whole), parts=(), computing=(0, 0))
    return cycles_of("v6e", cores, heads, blocks, cut, context)


@pytest.mark.parametrize("context", [64, 1024, 3000])
def test_little_work_hides_behind_the_copies(context: int) -> None:
    pages = -(-context // 64) * 64
    assert decode(context, tile=1, half=2, whole=3) == pytest.approx(pages * COPY)


def test_much_work_hides_the_copies() -> None:
    assert decode(3 * 1024 + 512, tile=10, half=3000, whole=9000) == pytest.approx(3 * 9000 + 3000 + 10)


def test_nothing_is_faster_than_the_peak() -> None:
    least = 2 * 512 * 1024 * (640 + 512) / CHIP.matrix_flops * CHIP.clock_hz
    assert decode(1024, whole=1, heads=512) == pytest.approx(max(least, 1024 * COPY))
    assert least > 1024 * COPY


def test_cores_share_tiles_and_bandwidth() -> None:
    assert decode(1024, cores=2) == pytest.approx(decode(1024))
    assert decode(1024, whole=10**6, cores=2) == pytest.approx(decode(1024, whole=10**6) / 2)
