"""What pages hold beside tokens, as bytes: the items whose embeddings stand at their places."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate

import numpy as np

from jaxengine.contract.media import PromptMedia


class MediaContent:
    """The items of a prompt by their places, and those that cross attention reads."""

    def __init__(self, media: PromptMedia) -> None:
        self._items = [item for item in media.items if len(item.places)]
        self._firsts = [int(item.places[0]) for item in self._items]
        self._reach = [*accumulate((int(item.places[-1]) for item in self._items), max)]
        self._read = [item.digest for item in media.items if item.unplaced]

    @property
    def read(self) -> bytes:
        """The items that cross attention reads: all that is computed depends on them."""
        return b"\x03" + bytes([len(self._read)]) + b"".join(self._read) if self._read else b""

    def between(self, start: int, end: int) -> bytes:
        """The items with places from `start` up to `end`: of each its digest, its first embedding there, and the places.

        Places count from `start`: the same picture somewhere else within a page is another content.
        """
        parts = []
        for number in range(bisect_left(self._reach, start), bisect_left(self._firsts, end)):
            places = self._items[number].places
            first, last = np.searchsorted(places, [start, end])
            if first < last:
                where = np.asarray([last - first, first, *(places[first:last] - start)], np.int32)
                parts += [self._items[number].digest, where.tobytes()]
        return b"".join(parts)
