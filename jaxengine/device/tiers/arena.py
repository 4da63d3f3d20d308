"""The host's memory for blocks: allocated once, of a fixed size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from jaxengine.device.tiers.block_store import Parts

if TYPE_CHECKING:
    from jaxengine.device.weights.placement import Bounds

Numbers: TypeAlias = NDArray[Any]


class Arena:
    """Blocks of one pool, each a page in all lanes `[lanes, T, C, L]`, by the part of it that a device has.

    Not thread-safe: one thread writes and reads.

    Args:
        pool: its number, for messages.
        num_blocks: how many there are. Memory that nothing was written to is not taken yet.
        parts: shape and type of each part.
    """

    def __init__(self, pool: int, num_blocks: int, parts: dict[Bounds, tuple[tuple[int, ...], np.dtype]]) -> None:
        self._pool = pool
        self.num_blocks = num_blocks
        self._blocks = {bounds: np.empty((num_blocks, *shape), dtype) for bounds, (shape, dtype) in parts.items()}
        self._written = np.zeros(num_blocks, np.bool_)

    @property
    def block_bytes(self) -> int:
        """Bytes of a block in all parts."""
        return sum(blocks.nbytes for blocks in self._blocks.values()) // max(1, self.num_blocks)

    def write(self, block: int, parts: Parts) -> None:
        """Keep a copy of all parts of a page."""
        for bounds, blocks in self._blocks.items():
            np.copyto(blocks[block], parts[bounds])
        self._written[block] = True

    def read(self, block: int) -> Parts:
        """A copy of all parts of a block."""
        return {bounds: blocks[block].copy() for bounds, blocks in self._blocks.items()}

    def gather(self, blocks: Sequence[int], bounds: Bounds, out: Numbers) -> None:
        """Write a part of these blocks side by side to `out [at least so many, lanes, T, C, L]`.

        Raises:
            ValueError: nothing was ever written to one of them.
        """
        for place, block in enumerate(blocks):
            if not self._written[block]:
                raise ValueError(f"block {block} of pool {self._pool} is to come back and was never written")
            np.copyto(out[place], self._blocks[bounds][block])
