"""Where the patches of items lie in a launch of an encoder, and what each of them is told: NumPy, from grids alone.

An item is `frames` times `height` by `width` patches. Its patches come in the order in which the processor gives them: row by
row, or where `merge` by `merge` of them make one embedding block by block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxengine.contract.media import Mosaic

Int32s = NDArray[np.int32]


class ItemGrid(NamedTuple):
    """How many patches an item has, and how its tiles are put together."""

    frames: int
    height: int
    width: int
    mosaic: Mosaic | None = None

    @property
    def patches(self) -> int:
        return self.frames * self.height * self.width


@dataclass(frozen=True, kw_only=True)
class Places:
    """Of a launch, of `N` places:

    `offsets [B + 1]`: where each row begins, within which patches see each other; `windows [W + 1]`: the same of smaller rows in
    which some layers see; `positions [N, 2]`: row and column of each; `table [N, T]`: rows of the table of positions that are
    added to each, `shares float32 [N, T]` times; `taken [M, K]`: the places of which each embedding is made, of some families
    `weights float32 [M, K]` times; `order [N]`: which patch, as the processor counts them, lies in each place, -1 being none.
    """

    offsets: Int32s
    windows: Int32s
    positions: Int32s
    table: Int32s
    shares: NDArray[np.float32]
    taken: Int32s
    order: Int32s
    weights: NDArray[np.float32] | None = None


def in_blocks(grid: ItemGrid, merge: int) -> Int32s:
    """Row and column of each patch of one frame `[height * width, 2]`, block by block of `merge` by `merge`."""
    rows, columns = np.indices((grid.height, grid.width), dtype=np.int32)
    shape = (grid.height // merge, merge, grid.width // merge, merge)
    return np.stack([of.reshape(shape).swapaxes(1, 2).ravel() for of in (rows, columns)], axis=-1)


def by_window(grid: ItemGrid, merge: int, window: int) -> tuple[Int32s, list[int]]:
    """The order of one frame's blocks by window of `window` by `window` blocks, row by row of windows, and each one's count."""
    height, width = grid.height // merge, grid.width // merge
    blocks = np.arange(height * width, dtype=np.int32).reshape(height, width)
    windows = [
        blocks[top : top + window, left : left + window].ravel()
        for top in range(0, height, window)
        for left in range(0, width, window)
    ]
    return np.concatenate(windows), [len(one) for one in windows]


def interpolated(positions: Int32s, grid: ItemGrid, side: int) -> tuple[Int32s, NDArray[np.float32]]:
    """Rows of a table of `side` by `side`, whose corners are those of the picture, and the shares of each `[n, 4]`."""
    taps, shares = [], []
    for axis, size in enumerate((grid.height, grid.width)):
        at = positions[:, axis].astype(np.float32) * np.float32(side - 1) / np.float32(max(size - 1, 1))
        floor = np.floor(at)
        taps.append(np.minimum(floor[:, None].astype(np.int32) + np.arange(2, dtype=np.int32), side - 1))
        far = (at - floor).astype(np.float32)
        shares.append(np.stack([1 - far, far], axis=-1))
    rows = taps[0][:, :, None] * side + taps[1][:, None, :]
    return rows.reshape(-1, 4), (shares[0][:, :, None] * shares[1][:, None, :]).reshape(-1, 4)


def starts(counts: Sequence[int]) -> Int32s:
    """Where each of runs of these lengths begins, and where the last ends."""
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).astype(np.int32)


def padded(places: Places, *, patches: int, rows: int, windows: int, embeddings: int) -> Places:
    """The same in arrays of these lengths: further rows are empty, further places are nothing.

    Raises:
        ValueError: they do not hold it.
    """

    def fill(values: NDArray[Any], length: int, filler: int = 0) -> NDArray[Any]:
        if len(values) > length:
            raise ValueError(f"{len(values)} do not fit {length} of a launch")
        rest = np.full((length - len(values), *values.shape[1:]), filler, values.dtype)
        return np.concatenate([values, rest])

    return Places(
        offsets=fill(places.offsets, rows + 1, int(places.offsets[-1])),
        windows=fill(places.windows, windows + 1, int(places.windows[-1])),
        positions=fill(places.positions, patches),
        table=fill(places.table, patches),
        shares=fill(places.shares, patches),
        taken=fill(places.taken, embeddings),
        order=fill(places.order, patches, -1),
        weights=None if places.weights is None else fill(places.weights, embeddings),
    )
