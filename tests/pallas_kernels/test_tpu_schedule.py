"""The TPU kernel's tiles: every token is in one, on one core, and there is room for all of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pallas_kernels.tpu.attention.blocks import Blocks
from pallas_kernels.tpu.attention.schedule import empty_tiles, make_tiles

PAGE_TOKENS = 4
ROWS, TOKENS = 6, 40
CUTS = (
    Blocks(lengths=range(1, 2), pages=4, places=1, few=True, vmem_bytes=0),
    Blocks(lengths=range(2, 5), pages=4, places=4, few=True, vmem_bytes=0),
    Blocks(lengths=range(5, TOKENS + 1), pages=2, places=8, few=False, vmem_bytes=0),
)


@st.composite
def rows(draw: st.DrawFn) -> list[tuple[int, int]]:
    """Where each row starts, and how many tokens it has; an empty row starts anywhere."""
    found, left = [], TOKENS
    for _ in range(ROWS):
        count = draw(st.integers(0, left) | st.integers(0, min(left, 5)))
        found.append((draw(st.integers(0, 50)) if count else 2**30, count))
        left -= count
    return found


def check(rows: list[tuple[int, int]], *, cores: int, window: int | None) -> None:
    starts = np.array([start for start, _ in rows], np.int32)
    offsets = np.cumsum([0, *(count for _, count in rows)]).astype(np.int32)
    made = make_tiles(offsets, starts, CUTS, tokens=TOKENS, page_tokens=PAGE_TOKENS, window=window, cores=cores)
    tiles = {name: np.asarray(values) for name, values in made._asdict().items() if name != "seen"}
    assert all(values.dtype == np.int32 for values in tiles.values())
    bounds = tiles["bounds"].reshape(len(CUTS), cores + 1)
    first, covered = 0, np.zeros(TOKENS, int)
    for cut, empty, limits in zip(CUTS, empty_tiles(CUTS, rows=ROWS, tokens=TOKENS), bounds, strict=True):
        assert limits[0] == first
        assert (np.diff(limits) >= 0).all()
        assert limits[-1] <= empty
        assert not tiles["end"][limits[-1] : empty + 1].any()
        blocks_before = 0
        for tile in range(first, limits[-1]):
            row, place, start, end, low, buffer = (tiles[name][tile] for name in list(tiles)[:6])
            before = place - offsets[row]
            assert start == starts[row] + before
            assert end - start == min(cut.places, rows[row][1] - before)
            assert before % cut.places == 0
            assert rows[row][1] in cut.lengths
            assert low == (0 if window is None else max(0, start - window + 1))
            covered[place : place + end - start] += 1
            assert buffer == blocks_before % 2
            blocks_before += -(-end // (cut.pages * PAGE_TOKENS)) - low // (cut.pages * PAGE_TOKENS)
        first = empty + 1
    assert first == len(tiles["end"])
    assert (covered == (np.arange(TOKENS) < offsets[-1])).all()


@settings(max_examples=25, deadline=None)
@given(rows=rows(), cores=st.sampled_from([1, 2]), window=st.none() | st.integers(1, 30))
def test_every_token_is_in_one_tile_of_its_cut(rows: list[tuple[int, int]], cores: int, window: int | None) -> None:
    check(rows, cores=cores, window=window)


@pytest.mark.parametrize("count", [1, 4, 5, 9, TOKENS])
def test_there_is_room_for_as_many_tiles_as_rows_can_need(count: int) -> None:
    counts = [min(count, max(0, TOKENS - count * row)) for row in range(ROWS)]
    check([(3, count) for count in counts], cores=1, window=None)


def test_cores_share_blocks_not_tiles() -> None:
    """A long context is as much work as many short ones."""
    starts = np.array([399, 0, 0, 0, 0, 0], np.int32)
    made = make_tiles(
        np.arange(7, dtype=np.int32), starts, CUTS, tokens=TOKENS, page_tokens=PAGE_TOKENS, window=None, cores=2
    )
    assert np.asarray(made.bounds)[:3].tolist() == [0, 1, 6]
