"""Values that are computed once for each key, whoever asks, and forgotten when others are used more."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Generic, TypeVar

from jaxengine.errors import RequestError

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Once(Generic[K, V]):
    """A cache of what `make` returns, or of the RequestError that it raises. Thread-safe; `get` may block.

    Args:
        make: from a key to its value.
        size: bytes of a key.
        max_entries: most keys that are kept.
        max_bytes: most bytes of keys that are kept; the newest stays in any case.
    """

    def __init__(self, make: Callable[[K], V], *, size: Callable[[K], int], max_entries: int, max_bytes: int) -> None:
        self._make = make
        self._size = size
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._entries: OrderedDict[K, Future[V]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: K) -> V:
        """The value: kept, from another caller who is making it, or made here.

        Raises:
            RequestError: there is none for this key.
        """
        with self._lock:
            future = self._entries.get(key)
            mine = future is None
            if future is None:
                future = self._entries[key] = Future()
                self._bytes += self._size(key)
                self._evict()
            else:
                self._entries.move_to_end(key)
        if mine:
            self._fulfil(future, key)
        error = future.exception()
        if error is not None:
            raise RequestError(str(error), param=error.param) if isinstance(error, RequestError) else error
        return future.result()

    def is_ready(self, key: K) -> bool:
        """Whether `get` would return, or raise, at once."""
        with self._lock:
            future = self._entries.get(key)
        return future is not None and future.done()

    def _fulfil(self, future: Future[V], key: K) -> None:
        try:
            future.set_result(self._make(key))
        except BaseException as error:
            future.set_exception(error)
            if not isinstance(error, RequestError):  # what is not the key's fault may go well the next time
                with self._lock:
                    if self._entries.pop(key, None) is not None:
                        self._bytes -= self._size(key)

    def _evict(self) -> None:
        while len(self._entries) > self._max_entries or (self._bytes > self._max_bytes and len(self._entries) > 1):
            key, _ = self._entries.popitem(last=False)
            self._bytes -= self._size(key)
