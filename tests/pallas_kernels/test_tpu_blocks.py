"""How rows are cut for a TPU's kernels: blocks of keys and values by window, and windows of rows of experts."""

from __future__ import annotations

import pytest

from pallas_kernels.grouped_scaled_matmul.tpu_few import LEAST_WINDOW, MOST_WINDOW, TILE, window_rows
from pallas_kernels.paged_attention.tpu_blocks import choose_blocks
from pallas_kernels.tpu.chip import MIB, Chip

V6E = Chip("v6e", 1, vmem_bytes=128 * MIB, smem_bytes=MIB, matrix_columns=256)


def block_tokens(window: int | None) -> tuple[int, int]:
    """Of a block beside few queries, and beside many, of gpt-oss's prompt of 2,048 tokens."""
    page = (64, 2, 128)
    chosen = choose_blocks(
        V6E, tokens=2048, group=8, kv_heads=1, width=128, page=page, itemsize=2, computed_itemsize=2, window=window
    )
    assert chosen is not None
    return chosen[0].pages * page[0], chosen[-1].pages * page[0]


@pytest.mark.parametrize(("window", "tokens"), [(128, (128, 256)), (64, (128, 256)), (129, (256, 512))])
def test_short_windows_have_short_blocks(window: int, tokens: tuple[int, int]) -> None:
    assert block_tokens(window) == tokens


def test_long_windows_have_the_blocks_of_none() -> None:
    assert block_tokens(4096) == block_tokens(None)


@pytest.mark.parametrize("groups", [1, 7, 16, 128])
@pytest.mark.parametrize("places", [TILE, 10 * TILE, 100 * TILE])
def test_a_window_of_rows_is_whole_tiles_and_more_than_a_group_has(places: int, groups: int) -> None:
    rows = window_rows(places, groups)
    assert rows % TILE == 0 or rows in (LEAST_WINDOW, MOST_WINDOW)
    assert rows > places / groups or rows in (places, MOST_WINDOW)
