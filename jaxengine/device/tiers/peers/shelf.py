"""What an engine has laid out for others to fetch: blocks as bytes, by key, in a ring."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxengine.device.tiers.peers.ring import Ring
from jaxengine.device.tiers.peers.session import Bytes, deadline

EXPECTED_S = 5.0
"""How long a block is expected; then it got lost."""
MOST_EXPECTED = 65_536


class Place(NamedTuple):
    """Where a block's bytes lie in the ring."""

    position: int
    length: int


class Shelf:
    """Blocks by key, the oldest of which give way. Any thread may call any method.

    What is `expected` is about to be laid out, and may be waited for.
    """

    def __init__(self, ring: Ring) -> None:
        self.ring = ring
        self._places: OrderedDict[bytes, Place] = OrderedDict()
        self._expected: dict[bytes, float] = {}
        self._changed = threading.Condition()

    def __len__(self) -> int:
        return len(self._places)

    def expect(self, keys: Sequence[bytes]) -> None:
        """These blocks are on their way here, unless they get lost."""
        until = deadline(EXPECTED_S)
        with self._changed:
            self._expected.update((key, until) for key in keys if key not in self._places)
            while len(self._expected) > MOST_EXPECTED:
                del self._expected[next(iter(self._expected))]

    def put(self, key: bytes, parts: Sequence[Bytes], length: int) -> bool:
        """Lay out a block; False where it lies there already, or is larger than the ring."""
        with self._changed:
            there = key in self._places
        position = None if there else self.ring.append(parts, length)
        with self._changed:
            if position is not None:
                self._lay(key, Place(position, length))
            self._expected.pop(key, None)
            self._changed.notify_all()
        return position is not None

    def has(self, keys: Sequence[bytes]) -> list[bool]:
        """Which of these lie there."""
        with self._changed:
            return [key in self._places for key in keys]

    def wait(self, keys: Sequence[bytes], seconds: float) -> list[bool]:
        """As `has`, once none of them is expected any more, or after so many seconds."""
        until = deadline(seconds)
        with self._changed:
            while True:
                now = time.monotonic()
                due = [at for key in keys if (at := self._expected.get(key, 0.0)) > now]
                if not due or now >= until:
                    return [key in self._places for key in keys]
                self._changed.wait(min(until, *due) - now)

    def place(self, key: bytes) -> Place | None:
        """Where a block lies. One in the older half of the ring is laid out again: it is still asked for."""
        with self._changed:
            place = self._places.get(key)
        if place is None or place.position >= self.ring.oldest + self.ring.size // 2:
            return place
        copy = self.ring.read(*place)
        position = None if copy is None else self.ring.append([copy.data], place.length)
        if position is None:
            return None
        with self._changed:
            return self._lay(key, Place(position, place.length))

    def take(self, key: bytes) -> NDArray[np.uint8] | None:
        """A copy of a block's bytes."""
        place = self.place(key)
        return None if place is None else self.ring.read(*place)

    def drop(self, key: bytes) -> None:
        """Forget a block, if it is there."""
        with self._changed:
            self._places.pop(key, None)

    def _lay(self, key: bytes, place: Place) -> Place:
        """Note where a block lies, and forget those that it has overwritten."""
        self._places[key] = place
        self._places.move_to_end(key)
        while self._places and next(iter(self._places.values())).position < self.ring.oldest:
            self._places.popitem(last=False)
        return place
