"""Prepared items that are kept for prompts which show them again."""

from __future__ import annotations

import threading
from collections import OrderedDict

from jaxengine.media.processors.processor import Made


class KeptItems:
    """At most `max_bytes` of what was prepared, by digest; what was used last stays. Threads may share it.

    Attributes:
        queries: how often something was looked for.
        hits: how often it was there.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._items: OrderedDict[bytes, Made] = OrderedDict()
        self._lock = threading.Lock()
        self.queries = self.hits = 0

    def find(self, digest: bytes) -> Made | None:
        """What was made of the content with this digest."""
        with self._lock:
            self.queries += 1
            made = self._items.get(digest)
            if made is not None:
                self.hits += 1
                self._items.move_to_end(digest)
            return made

    def keep(self, digest: bytes, made: Made) -> None:
        """Keep it, and give up what was not used for longest."""
        if made.patches.nbytes > self._max_bytes:
            return
        with self._lock:
            if digest in self._items:
                return
            self._items[digest] = made
            self._bytes += made.patches.nbytes
            while self._bytes > self._max_bytes:
                _, old = self._items.popitem(last=False)
                self._bytes -= old.patches.nbytes
