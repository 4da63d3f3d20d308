"""What one sequence holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from jaxengine.contract.arrays import Int32s
from jaxengine.contract.batch import FromHost
from jaxengine.contract.windows import first_page_seen
from jaxengine.host.kvcache.pages import SINK
from jaxengine.host.kvcache.pool import PagePool
from jaxengine.host.kvcache.prefix import Chain, Digest


class GroupPages:
    """A sequence's pages in one cache group, by the positions they cover: `ids[i]`, of `pool`, is for `[i * T, (i + 1) * T)`.

    `keep` is how many positions back a token sees, itself included; None is all. Pages wholly before what is still seen are
    given back: the first `num_dropped` ids are the sink then, and nothing reads them. `num_tokens` positions are covered.
    `coming` maps page numbers to the host's blocks that hold what belongs there; until there is a page for it that is the sink.
    """

    __slots__ = ("coming", "ids", "keep", "num_dropped", "num_tokens", "pool")

    def __init__(
        self, pool: PagePool, keep: int | None, ids: list[int], num_tokens: int, *, num_dropped: int = 0
    ) -> None:
        self.pool = pool
        self.keep = keep
        self.ids = ids
        self.num_tokens = num_tokens
        self.num_dropped = num_dropped
        self.coming: dict[int, int] = {}

    @property
    def held(self) -> Sequence[int]:
        """The pages that it holds, in order."""
        held = self.ids[self.num_dropped :] if self.num_dropped else self.ids
        return [page for page in held if page != SINK] if self.coming else held

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
        return max(0, -(-num_tokens // page_size) - len(self.ids)) + len(self.coming)

    def extend(self, num_pages: int) -> list[FromHost]:
        """Take so many pages, which are available: first for what comes, by the moves returned, then behind the others."""
        moves = []
        if self.coming:
            blocks = self.pool.blocks
            assert blocks is not None, "blocks are of a pool that has some"
            for number, block in self.coming.items():
                self.ids[number] = self.pool.take()
                moves.append(blocks.come_back(block, self.ids[number]))
            num_pages -= len(self.coming)
            self.coming.clear()
        self.ids.extend(self.pool.take() for _ in range(num_pages))
        return moves

    def drop_behind(self, num_tokens: int, page_size: int) -> bool:
        """Give back the pages behind so many positions; whether there were any."""
        before = len(self.ids)
        while len(self.ids) > max(-(-num_tokens // page_size), self.num_dropped):
            self.pool.drop(self.ids.pop())
        self.num_tokens = min(self.num_tokens, len(self.ids) * page_size)
        return len(self.ids) < before

    def drop_unseen(self, position: int, page_size: int) -> None:
        """Give back the pages that no token from `position` on sees."""
        for number in range(self.num_dropped, min(self.first_seen(position, page_size), len(self.ids))):
            self.pool.drop(self.ids[number])
            self.ids[number] = SINK
            self.num_dropped = number + 1


class Holding:
    """The pages of a sequence in every cache group; the first `num_found` positions' pages can be found by others.

    `chain` knows what its pages hold; `announced` is the digest of the page that it will compute next, `awaits` says that
    another had announced it before. `looked_up` counts tokens whose lookup is not in the statistics yet, `num_cached` those that
    were found, of which `from_tiers` says how many lay in which tier behind the device. `coming` are the moves that bring these.
    `view [G, n]` is the read-only page table, one row per group, as wide as the group that covers most; the sink stands where a
    group has no page. What a view shows never changes: pages are appended behind it, and where some go back a new array begins.
    So a batch in flight keeps the pages it was made with.
    """

    __slots__ = (
        "_shown",
        "_table",
        "announced",
        "awaits",
        "chain",
        "coming",
        "from_tiers",
        "groups",
        "looked_up",
        "num_cached",
        "num_found",
        "view",
    )

    def __init__(self, chain: Chain, groups: tuple[GroupPages, ...], num_found: int, *, looked_up: int = 0) -> None:
        self.chain = chain
        self.groups = groups
        self.num_found = num_found
        self.looked_up = looked_up
        self.num_cached = 0
        self.from_tiers: dict[str, int] = {}
        self.coming: tuple[FromHost, ...] = ()
        self.announced: Digest | None = None
        self.awaits = False
        self._rebuild()

    def missing(self, num_tokens: int, *, start: int, ahead: int | None, page_size: int) -> Counter[PagePool]:
        """Pages of each pool that `grow` with the same arguments would take."""
        missing = Counter[PagePool]()
        for group in self.groups:
            missing[group.pool] += group.missing(group.end(num_tokens, start, ahead), page_size)
        return missing

    def grow(self, num_tokens: int, *, start: int, ahead: int | None, page_size: int) -> bool:
        """Cover so many positions, as `Ledger.grow` has it; False, and nothing taken, when too few pages are available."""
        groups = self.groups
        if len(groups) == 1 and groups[0].keep is None and not groups[0].coming:
            return self._cover(groups[0], num_tokens, page_size)
        for group in groups:
            group.drop_unseen(start, page_size)
        missing = self.missing(num_tokens, start=start, ahead=ahead, page_size=page_size)
        fits = all(pages <= pool.num_available for pool, pages in missing.items())
        for group in groups if fits else ():
            end = group.end(num_tokens, start, ahead)
            self.coming += tuple(group.extend(group.missing(end, page_size)))
            group.num_tokens = max(group.num_tokens, end)
        self._rebuild()
        return fits

    def is_full(self, page_size: int) -> bool:
        """Whether it has one group, of which nothing goes back and nothing comes, and covers all positions of its pages."""
        group = self.groups[0]
        whole = len(self.groups) == 1 and group.keep is None and not group.coming
        return whole and group.num_tokens == len(group.ids) * page_size

    def append(self, page_size: int) -> Int32s:
        """Cover another page, which is available, where `is_full`; the page table."""
        self._take_page(self.groups[0])
        self.groups[0].num_tokens += page_size
        return self.view

    def shrink(self, num_tokens: int, *, page_size: int) -> bool:
        """Give back the pages behind so many positions; whether there were any."""
        given_back = [group.drop_behind(num_tokens, page_size) for group in self.groups]
        if any(given_back):
            self._rebuild()
        return any(given_back)

    def _cover(self, group: GroupPages, num_tokens: int, page_size: int) -> bool:
        """Let the only group, of which nothing goes back, cover so many positions; False when too few pages are available."""
        missing = -(-num_tokens // page_size) - len(group.ids)
        if missing > group.pool.num_available:
            return False
        for _ in range(missing):
            self._take_page(group)
        group.num_tokens = max(group.num_tokens, num_tokens)
        return True

    def _take_page(self, group: GroupPages) -> None:
        """Take a page for the only group, which is available, and show it."""
        number = len(group.ids)
        group.ids.append(group.pool.take())
        if number < self._table.shape[1]:
            self._table[0, number] = group.ids[number]
            self._show(number + 1)
        else:
            self._rebuild()

    def _rebuild(self) -> None:
        """Show the pages in a new array."""
        width = max(len(group.ids) for group in self.groups)
        self._table: Int32s = np.full((len(self.groups), max(8, 2 * width)), SINK, np.int32)
        for row, group in zip(self._table, self.groups, strict=True):
            row[: len(group.ids)] = group.ids
        self._shown = self._table.view()
        self._shown.flags.writeable = False
        self._show(width)

    def _show(self, width: int) -> None:
        self.view: Int32s = self._shown[:, :width]
