"""What is asked of the outer stores, on threads that nobody waits for."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from functools import partial
from threading import BoundedSemaphore

from jaxengine.contract.page_name import PageName
from jaxengine.contract.tiers import Answer, Ask, Load, Loaded, Save
from jaxengine.device.tiers.arena import Arena
from jaxengine.device.tiers.block_store import Parts
from jaxengine.device.tiers.keys import Keys
from jaxengine.device.tiers.news import News
from jaxengine.device.tiers.outer_stores import OuterStores
from jaxengine.device.tiers.worker import Worker

logger = logging.getLogger("jaxengine")

ASKING, LOADING, SAVING = 2, 4, 2
"""Threads that look pages up, fetch them, and write them."""
SAVING_BYTES = 1 << 28
"""Copies of pages that wait to be written. What a slow store has no room for in there it does not get."""
CLOSING_S = 10.0
"""How long pages that are on their way to the stores may take at the end."""


class OuterTransfers:
    """Between the host's blocks and the outer stores.

    Args:
        stores: what is behind the blocks.
        arenas: the blocks, by pool.
        in_order: the one thread that reads and writes them.
        news: what has ended.
    """

    def __init__(self, stores: OuterStores, arenas: Sequence[Arena], in_order: Worker, news: News) -> None:
        self._stores = stores
        self._arenas = arenas
        self._in_order = in_order
        self._news = news
        self._asking = Worker("pages asked for", news.fail, threads=ASKING)
        self._loading = Worker("pages loaded", news.fail, threads=LOADING)
        self._saving = Worker("pages saved", news.fail, threads=SAVING)
        largest = max((arena.block_bytes for arena in arenas), default=0)
        self._room = BoundedSemaphore(max(1, SAVING_BYTES // max(1, largest)))

    def ask(self, ask: Ask) -> None:
        """Look pages up, and tell of an `Answer`."""
        self._asking.submit(partial(self._ask, ask))

    def load(self, load: Load) -> None:
        """Fetch a page to its block, and tell that it is `Loaded`, or not."""
        self._loading.submit(partial(self._fetch, load))

    def save(self, save: Save) -> None:
        """Copy what a block holds when everything before this is done, and offer it to the stores some time."""
        if self._room.acquire(blocking=False):
            self._stores.expect((save.name,))
            self._in_order.submit(partial(self._copy, save, self._stores.keys))

    def close(self) -> None:
        """Let go of the stores when pages that are on their way to them are there, or after a while."""
        for worker in (self._asking, self._loading, self._saving):
            worker.close(CLOSING_S)
        self._stores.close()

    def _ask(self, ask: Ask) -> None:
        there = [False] * len(ask.names)
        try:
            there = self._stores.has(ask.names)
        except Exception:
            logger.exception("pages could not be looked up in a store and are computed")
        self._news.tell(Answer(ask.number, tuple(there)))

    def _fetch(self, load: Load) -> None:
        begun, found = time.perf_counter(), None
        try:
            found = self._stores.fetch(load.name)
        except Exception:
            logger.exception("a page could not be fetched from a store and is computed")
        if found is None:
            self._news.tell(Loaded(load.pool, load.block, None))
            return
        self._news.count(f"{found.source} to host", self._arenas[load.pool].block_bytes, time.perf_counter() - begun)
        self._in_order.submit(partial(self._write, load, found.parts, found.source))

    def _write(self, load: Load, parts: Parts, source: str) -> None:
        self._arenas[load.pool].write(load.block, parts)
        self._news.tell(Loaded(load.pool, load.block, source))

    def _copy(self, save: Save, keys: Keys) -> None:
        parts = self._arenas[save.pool].read(save.block)
        self._saving.submit(partial(self._store, save.name, parts, keys))

    def _store(self, name: PageName, parts: Parts, keys: Keys) -> None:
        begun = time.perf_counter()
        try:
            if self._stores.store(name, parts, keys):
                size = sum(part.nbytes for part in parts.values())
                self._news.count("host to outer", size, time.perf_counter() - begun)
        except Exception:
            logger.exception("a page could not be kept in a store")
        finally:
            self._room.release()
