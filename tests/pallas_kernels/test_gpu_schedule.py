"""The programs of the GPU kernel together attend every token to all that it sees, once, within the sizes chosen for any rows."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pallas_kernels.gpu.attention.blocks import Blocks
from pallas_kernels.gpu.attention.schedule import Parts, Shares, cut, make_rows, share_out
from pallas_kernels.paged_attention.gpu_blocks import choose_blocks

CONTEXT = 3000
ROWS = 6


def chosen(*, rows: int, places: int, group: int = 4, kv_heads: int = 2, itemsize: int = 2) -> Blocks:
    return choose_blocks(
        rows=rows,
        places=places,
        group=group,
        kv_heads=kv_heads,
        width=128,
        itemsize=itemsize,
        most_tokens=CONTEXT,
        interpreted=False,
    )


@functools.partial(jax.jit, static_argnames=("places", "blocks", "window"))
def scheduled(
    offsets: jax.Array, starts: jax.Array, *, places: int, blocks: Blocks, window: int | None
) -> tuple[Shares, Parts, Shares | None]:
    rows = make_rows(offsets, starts, places=places, block_tokens=blocks.few.block_tokens, window=window)
    tiles = None
    if blocks.many is not None:
        tiles = cut(
            rows, blocks.many, longer_than=blocks.few.places, block_tokens=blocks.many.block_tokens, window=window
        )
    return *share_out(rows, blocks.few), tiles


def schedule(
    rows: list[tuple[int, int]], places: int, blocks: Blocks, window: int | None = None
) -> tuple[Any, Any, Any]:
    """Shares and parts of short rows, and the tiles of long ones, if any can be; of each the arrays."""
    offsets = jnp.asarray(np.cumsum([0, *(count for _, count in rows)]), jnp.int32)
    starts = jnp.asarray([start for start, _ in rows], jnp.int32)
    shares, parts, tiles = scheduled(offsets, starts, places=places, blocks=blocks, window=window)
    return numpy(shares), numpy(parts), tiles and numpy(tiles)


def numpy(scalars: Any) -> Any:
    return type(scalars)(*(np.asarray(array) for array in scalars))


def each(scalars: Any) -> list[Any]:
    """The entries that have places."""
    return [entry for entry in (type(scalars)(*entry) for entry in zip(*scalars, strict=True)) if entry.places > 0]


@pytest.mark.parametrize(
    ("places", "group", "kv_heads", "itemsize", "window"),
    [
        (6, 4, 8, 2, None),
        (40, 4, 8, 2, None),
        (700, 1, 2, 2, None),
        (700, 7, 100, 2, 100),
        (700, 4, 1000, 2, None),
        (300, 64, 8, 2, 1),
        (300, 4, 8, 4, 500),
    ],
)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_every_token_meets_every_block_that_it_sees_once(
    data: st.DataObject, places: int, group: int, kv_heads: int, itemsize: int, window: int | None
) -> None:
    rows: list[tuple[int, int]] = []
    for _ in range(ROWS):
        left = places - sum(count for _, count in rows)
        count = data.draw(st.integers(0, left) | st.integers(0, min(left, 3)) | st.just(left))
        rows.append((data.draw(st.integers(0, CONTEXT - count)), count))
    blocks = chosen(rows=ROWS, places=places, group=group, kv_heads=kv_heads, itemsize=itemsize)
    shares, parts, tiles = schedule(rows, places, blocks, window)

    states: dict[int, tuple[int, range]] = {}  # place and block range by place of the state
    for share in each(shares):
        assert share.places * group <= blocks.few.sizes[-1]
        for j in range(share.places):
            states[share.to + j] = share.place + j, range(share.begin, share.stop)
    assert len(states) == sum(share.places for share in each(shares))  # no two in one place
    assert all(0 <= at < blocks.few.states for at in states)
    attended: dict[int, list[int]] = {}  # blocks by place
    for part in each(parts):
        for j in range(part.places):
            found = [states.pop(part.at + k * part.places + j) for k in range(part.number)]
            assert {place for place, _ in found} <= {part.place + j}
            assert part.place + j not in attended
            attended[part.place + j] = [block for _, own in found for block in own]
    assert not states
    for tile in each(tiles) if tiles else ():
        assert tile.places * group <= blocks.many.size
        for place in range(tile.place, tile.place + tile.places):
            assert place not in attended
            attended[place] = list(range(tile.begin, tile.stop))
    assert attended.keys() == set(range(places))

    first = 0
    for start, count in rows:
        for j in range(count):
            low = 0 if window is None else max(0, start + j - window + 1)
            own = blocks.few if count <= blocks.few.places else blocks.many
            assert own is not None
            seen = range(low // own.block_tokens, (start + j) // own.block_tokens + 1)
            assert attended[first + j] == sorted(set(attended[first + j]))
            assert set(seen) <= set(attended[first + j])
            attended[first + j] = []
        first += count
    assert not any(attended.values())  # padding sees nothing


def test_tokens_know_their_rows_and_positions() -> None:
    rows = [(70, 1), (0, 0), (500, 200), (3, 2)]
    blocks = chosen(rows=4, places=256)
    shares, _, tiles = schedule(rows, 256, blocks)
    assert tiles is not None
    assert [(share.row, share.place, share.start, share.end) for share in each(shares)] == [
        (0, 0, 70, 71),
        (3, 201, 3, 5),
    ]
    by_place = sorted(each(tiles), key=lambda tile: tile.place)
    assert [(tile.row, tile.place, tile.places, tile.start, tile.end) for tile in by_place[:13]] == [
        (2, place, count, 499 + place, 499 + place + count)
        for place, count in zip(range(1, 201, 16), [16] * 12 + [8], strict=True)
    ]
    assert [(tile.place, tile.places, tile.end) for tile in by_place[13:]] == [
        (203, 16, 0),
        (219, 16, 0),
        (235, 16, 0),
        (251, 5, 0),
    ]


def test_one_long_context_among_short_ones_is_shared_out() -> None:
    rows = [(CONTEXT - 1, 1), *[(10, 1)] * 63]
    blocks = chosen(rows=64, places=64, kv_heads=100)
    assert blocks.few.wanted == 5
    shares, _, _ = schedule(rows, 64, blocks)
    longest = max(share.stop - share.begin for share in each(shares))
    assert longest == -(-(47 + 63) // 5)  # blocks of 64 tokens
    assert sum(share.row == 0 for share in each(shares)) == 3


def test_where_no_row_can_be_long_there_is_one_kind_of_tile() -> None:
    assert chosen(rows=4, places=16).many is None
    assert chosen(rows=4, places=17).many is not None
    assert chosen(rows=4, places=17).few.sizes == (16, 64)  # of one token and of more
    assert chosen(rows=1, places=1).few.sizes == (16,)
