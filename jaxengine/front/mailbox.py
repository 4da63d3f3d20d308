"""From any thread to an event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Generic, TypeVar

T = TypeVar("T")


class Mailbox(Generic[T]):
    """What threads hand to an event loop. However much comes, the loop is woken once until it looks.

    Args:
        loop: the event loop.
        look: called on it when something has come; it takes all with `take_all`.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, look: Callable[[], None]) -> None:
        self._loop = loop
        self._look = look
        self._items: deque[T] = deque()
        self._woken = False

    def put(self, item: T) -> None:
        """Hand over an item, on whatever thread."""
        self._items.append(item)
        if not self._woken:
            self._woken = True
            with suppress(RuntimeError):  # the loop was closed: nobody is left to be told
                self._loop.call_soon_threadsafe(self._look)

    def look_again(self) -> None:
        """Have the loop look behind its other work, though nothing may have come. On the loop."""
        if not self._woken:
            self._woken = True
            self._loop.call_soon(self._look)

    def take_all(self) -> Iterator[T]:
        """Everything that has come, in order, what comes meanwhile too. On the loop."""
        self._woken = False  # first: what comes from here on may be seen below, and else wakes the loop again
        while self._items:
            yield self._items.popleft()
