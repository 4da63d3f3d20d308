"""What one sequence holds."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from jaxengine.kvcache.prefix import Chain, Digest

Int32s = NDArray[np.int32]


class Holding:
    """The pages that cover positions `[0, num_tokens)` of a sequence; the first `num_found` of them can be found by others.

    `chain` knows what its pages hold; `announced` is the digest of the page that it will compute next, `awaits` says that
    another had announced it before. `looked_up` counts tokens whose lookup is not in the statistics yet. `view` is the
    read-only page table. What a view shows never changes: pages are appended behind it, and replacing one starts a new array.
    So a batch in flight keeps the pages it was made with.
    """

    __slots__ = ("_table", "announced", "awaits", "chain", "ids", "looked_up", "num_found", "num_tokens", "view")

    def __init__(self, chain: Chain, ids: list[int], num_tokens: int, num_found: int, *, looked_up: int = 0) -> None:
        self.chain = chain
        self.ids = ids
        self.num_tokens = num_tokens
        self.num_found = num_found
        self.looked_up = looked_up
        self.announced: Digest | None = None
        self.awaits = False
        self._rebuild()

    def append(self, pages: Iterable[int]) -> None:
        """Add pages at the end."""
        before = len(self.ids)
        self.ids.extend(pages)
        if len(self.ids) > len(self._table):
            self._rebuild()
        else:
            self._table[before : len(self.ids)] = self.ids[before:]
            self._show()

    def replace_tail(self, page: int) -> None:
        """Put `page` in the place of the last one."""
        self.ids[-1] = page
        self._rebuild()

    def _rebuild(self) -> None:
        self._table: Int32s = np.empty(max(8, 2 * len(self.ids)), np.int32)
        self._table[: len(self.ids)] = self.ids
        self._show()

    def _show(self) -> None:
        self.view: Int32s = self._table[: len(self.ids)]
        self.view.flags.writeable = False
