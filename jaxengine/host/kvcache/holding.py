"""What one sequence holds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from jaxengine.contract.windows import first_page_seen
from jaxengine.host.kvcache.pages import SINK
from jaxengine.host.kvcache.pool import PagePool
from jaxengine.host.kvcache.prefix import Chain, Digest

Int32s = NDArray[np.int32]


class GroupPages:
    """A sequence's pages in one cache group, by the positions they cover: `ids[i]`, of `pool`, is for `[i * T, (i + 1) * T)`.

    `keep` is how many positions back a token sees, itself included; None is all. Pages wholly before what is still seen are
    given back: the first `num_dropped` ids are the sink then, and nothing reads them. `num_tokens` positions are covered.
    """

    __slots__ = ("ids", "keep", "num_dropped", "num_tokens", "pool")

    def __init__(
        self, pool: PagePool, keep: int | None, ids: list[int], num_tokens: int, *, num_dropped: int = 0
    ) -> None:
        self.pool = pool
        self.keep = keep
        self.ids = ids
        self.num_tokens = num_tokens
        self.num_dropped = num_dropped

    @property
    def held(self) -> Sequence[int]:
        """The pages that it holds, in order."""
        return self.ids[self.num_dropped :] if self.num_dropped else self.ids

    def first_seen(self, position: int, page_size: int) -> int:
        """The number of the first page that a token at `position` or later sees."""
        return first_page_seen(self.keep, position, page_size=page_size)

    def end(self, num_tokens: int, start: int, ahead: int | None) -> int:
        """How many of `num_tokens` positions are to be covered; `start` and `ahead` as in `Ledger.grow`."""
        if self.keep is None or ahead is None:
            return num_tokens
        return min(num_tokens, start + ahead)

    def missing(self, num_tokens: int, page_size: int) -> int:
        """Pages that it lacks to cover so many positions."""
        return max(0, -(-num_tokens // page_size) - len(self.ids))

    def drop_unseen(self, position: int, page_size: int) -> None:
        """Give back the pages that no token from `position` on sees."""
        for number in range(self.num_dropped, min(self.first_seen(position, page_size), len(self.ids))):
            self.pool.drop(self.ids[number])
            self.ids[number] = SINK
            self.num_dropped = number + 1


class Holding:
    """The pages of a sequence in every cache group; the first `num_found` positions' pages can be found by others.

    `chain` knows what its pages hold; `announced` is the digest of the page that it will compute next, `awaits` says that
    another had announced it before. `looked_up` counts tokens whose lookup is not in the statistics yet. `view [G, n]` is the
    read-only page table, one row per group, as wide as the group that covers most; the sink stands where a group has no page.
    What a view shows never changes: pages are appended behind it, and where some go back a new array begins. So a batch in
    flight keeps the pages it was made with.
    """

    __slots__ = ("_table", "announced", "awaits", "chain", "groups", "looked_up", "num_found", "view")

    def __init__(self, chain: Chain, groups: tuple[GroupPages, ...], num_found: int, *, looked_up: int = 0) -> None:
        self.chain = chain
        self.groups = groups
        self.num_found = num_found
        self.looked_up = looked_up
        self.announced: Digest | None = None
        self.awaits = False
        self.rebuild()

    def append(self, pages: Iterable[int]) -> None:
        """Add pages at the end of the only group."""
        [group] = self.groups
        before = len(group.ids)
        group.ids.extend(pages)
        if len(group.ids) > self._table.shape[1]:
            self.rebuild()
        else:
            self._table[0, before : len(group.ids)] = group.ids[before:]
            self._show(len(group.ids))

    def rebuild(self) -> None:
        """Show the pages in a new array."""
        width = max(len(group.ids) for group in self.groups)
        self._table: Int32s = np.full((len(self.groups), max(8, 2 * width)), SINK, np.int32)
        for row, group in zip(self._table, self.groups, strict=True):
            row[: len(group.ids)] = group.ids
        self._show(width)

    def _show(self, width: int) -> None:
        self.view: Int32s = self._table[:, :width]
        self.view.flags.writeable = False
