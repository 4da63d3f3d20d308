"""How latent attention on a TPU is cut: lengths in order, without a gap, in what fits; longer blocks where a chip wants them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pallas_kernels.latent_attention.tpu_blocks import FEW_HEADS, choose_blocks
from pallas_kernels.tpu.attention.blocks import Blocks
from pallas_kernels.tpu.chip import MIB, Chip

PAGE = 64
WIDTH, VALUES = 640, 512
"""Of DeepSeek's vectors on a TPU."""

V6E = Chip("v6e", 1, vmem_bytes=128 * MIB, smem_bytes=MIB, matrix_columns=256)


def blocks(heads: int, *, chip: str = "v6e", vmem: int = 128 * MIB, itemsize: int = 2) -> tuple[Blocks, ...] | None:
    return choose_blocks(
        replace(V6E, name=chip, vmem_bytes=vmem),
        tokens=64,
        heads=heads,
        page=(PAGE, WIDTH),
        values=VALUES,
        itemsize=itemsize,
        stored=itemsize,
    )


@pytest.mark.parametrize("heads", [1, 8, FEW_HEADS, 128])
@pytest.mark.parametrize("chip", ["v5e", "v6e"])
def test_every_length_has_one_way_to_be_cut(heads: int, chip: str) -> None:
    found = blocks(heads, chip=chip)
    assert found is not None
    assert [length for each in found for length in each.lengths] == list(range(1, 65))
    assert found[0].places == 1
    assert all(each.vmem_bytes <= 96 * MIB for each in found)


@pytest.mark.parametrize(
    ("chip", "heads", "tokens"),
    [("v5e", 128, 1024), ("v6e", 128, 2048), ("v6e", FEW_HEADS + 1, 2048), ("v6e", 16, 1024)],
)
def test_a_decoding_row_of_few_heads_has_shorter_blocks(chip: str, heads: int, tokens: int) -> None:
    """Where matrix units are of 256 x 256."""
    found = blocks(heads, chip=chip)
    assert found is not None
    assert found[0].pages * PAGE == tokens


def test_heads_that_share_words_have_tiles_of_whole_registers() -> None:
    found = choose_blocks(V6E, tokens=2048, heads=2, page=(PAGE, WIDTH), values=VALUES, itemsize=2, stored=2, least=8)
    assert found is not None
    assert [(each.lengths.start, each.lengths.stop, each.places) for each in found] == [
        (1, 9, 8),
        (9, 129, 128),
        (129, 2049, 512),
    ]


def test_float32_and_little_memory_shorten_blocks_until_nothing_fits() -> None:
    wide, narrow = blocks(128), blocks(128, itemsize=4)
    assert wide is not None
    assert narrow is not None
    assert narrow[0].pages < wide[0].pages
    small = blocks(128, vmem=16 * MIB)
    assert small is not None
    assert small[0].pages <= wide[0].pages
    assert blocks(128, vmem=MIB // 4) is None
