"""The pages of embeddings on the device: which item lies where, who holds it, and what is given up for others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jaxengine.contract.arrays import Int32s
from jaxengine.contract.media import MediaItem
from jaxengine.host.kvcache.pages import Pages

Key = tuple[bytes, str | None]
"""What an item is known by: its digest, and the salt of the request that shows it."""


class PooledItem:
    """An item that has pages. `request_ids` wait for it to be encoded.

    Once it is, by a launch that is under way at the latest, it is let go itself: `item` is None.
    """

    __slots__ = ("holders", "item", "key", "pages", "request_ids")

    def __init__(self, key: Key, item: MediaItem, pages: list[int]) -> None:
        self.key = key
        self.item: MediaItem | None = item
        self.pages: Int32s = np.asarray(pages, np.int32)
        self.holders = 1
        self.request_ids: dict[str, None] = {}

    @property
    def encoded(self) -> bool:
        """Whether its embeddings are there for launches to come."""
        return self.item is None


class EmbeddingPool:
    """Pages of embeddings, each of one item. Page 0 is the sink of padding.

              take                 drop
      free ---------> held by n ---------> idle, and can be found; free if it was not encoded
       ^                                    |
       +---------- the one idle for longest -+

    Pages that nobody holds may be given to others though steps in flight still read them: the device runs launches in order.

    Args:
        num_pages: all pages, the sink included.
        page_size: embeddings of a page.

    Attributes:
        num_freed: how often pages came to be available: before that changes nothing fits that did not.
    """

    def __init__(self, num_pages: int, page_size: int) -> None:
        self.page_size = page_size
        self.num_freed = 0
        self._pages = Pages(num_pages)
        self._items: dict[Key, PooledItem] = {}
        self._idle: dict[Key, PooledItem] = {}  # insertion order is the order in which they are given up
        self._num_idle = 0  # pages

    def __contains__(self, key: Key) -> bool:
        return key in self._items

    @property
    def capacity(self) -> int:
        """Pages that items can have together."""
        return self._pages.num_pages - 1

    @property
    def usage(self) -> float:
        """Share of the pages whose items somebody holds, 0 to 1."""
        return 1 - (self._pages.num_free + self._num_idle) / self.capacity

    def pages_of(self, item: MediaItem) -> int:
        """How many pages an item takes."""
        return -(-item.num_embeddings // self.page_size)

    def take(self, wanted: Sequence[tuple[Key, MediaItem]]) -> list[PooledItem] | None:
        """Hold these items, each as often as it is named: found here, or with pages that are theirs from now on.

        Returns:
            None, and nothing changed, where there are too few pages.
        """
        new = {key: item for key, item in wanted if key not in self._items}
        found = {key: idle for key, _ in wanted if (idle := self._idle.get(key)) is not None}
        available = self._pages.num_free + self._num_idle - sum(len(idle.pages) for idle in found.values())
        if sum(map(self.pages_of, new.values())) > available:
            return None
        for key, idle in found.items():
            del self._idle[key]
            self._num_idle -= len(idle.pages)
        taken = []
        for key, item in wanted:
            pooled = self._items.get(key)
            if pooled is None:
                pooled = self._items[key] = PooledItem(key, item, self._hand_out(self.pages_of(item)))
            else:
                pooled.holders += 1
            taken.append(pooled)
        return taken

    def drop(self, pooled: PooledItem) -> bool:
        """Hold an item once less; whether nobody holds it any more."""
        pooled.holders -= 1
        if pooled.holders:
            return False
        self.num_freed += 1
        if pooled.encoded:
            self._idle[pooled.key] = pooled
            self._num_idle += len(pooled.pages)
        else:
            self._forget(pooled)
        return True

    def forget(self) -> None:
        """What was encoded is worth nothing any more; nobody may hold anything."""
        assert len(self._idle) == len(self._items), "items are forgotten that are held"
        for pooled in self._idle.values():
            self._forget(pooled)
        self._idle.clear()
        self._num_idle = 0

    def check(self, held: Sequence[PooledItem]) -> None:
        """Prove that every page is accounted for, where these are all that is held, each as often as it is.

        Raises:
            AssertionError: it is not.
        """
        in_use = [page for pooled in self._items.values() for page in pooled.pages.tolist()]
        pages = sorted((*in_use, *self._pages.free_pages()))
        assert pages == list(range(1, self._pages.num_pages)), f"embedding pages {pages}"
        counts = {key: pooled.holders for key, pooled in self._items.items() if pooled.holders}
        counted: dict[Key, int] = {}
        for pooled in held:
            counted[pooled.key] = counted.get(pooled.key, 0) + 1
        assert counts == counted, f"items are held {counts}, and counted {counted}"
        assert self._idle == {key: pooled for key, pooled in self._items.items() if not pooled.holders}
        assert self._num_idle == sum(len(pooled.pages) for pooled in self._idle.values())
        assert all(pooled.encoded for pooled in self._idle.values()), "an item can be found that was never encoded"

    def _hand_out(self, count: int) -> list[int]:
        while self._pages.num_free < count:
            key = next(iter(self._idle))
            given_up = self._idle.pop(key)
            self._num_idle -= len(given_up.pages)
            self._forget(given_up)
        return [self._pages.take() for _ in range(count)]

    def _forget(self, pooled: PooledItem) -> None:
        del self._items[pooled.key]
        for page in reversed(pooled.pages.tolist()):
            self._pages.drop(page)
            self._pages.free(page)
