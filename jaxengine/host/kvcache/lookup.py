"""Where the pages of a prefix lie: on the device, on the host, or likely in outer stores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence

from jaxengine.contract.page_name import PageName
from jaxengine.contract.windows import first_page_seen
from jaxengine.host.kvcache.holding import GroupPages
from jaxengine.host.kvcache.pages import SINK
from jaxengine.host.kvcache.pool import PagePool
from jaxengine.host.kvcache.prefix import Chain, Entry, Prefixes
from jaxengine.host.kvcache.snapshots import Snapshots


class Lookup:
    """Finds how far the cached pages of a sequence reach, and lets it hold them.

    Args:
        groups: the pool of each cache group, and how many positions back its layers see; None is all.
        prefixes: what pages are known by.
        page_size: tokens of a page.
        snapshots: as in `Ledger`.
    """

    def __init__(
        self,
        groups: Sequence[tuple[PagePool, int | None]],
        prefixes: Prefixes,
        page_size: int,
        snapshots: Snapshots | None,
    ) -> None:
        self._groups = groups
        self._prefixes = prefixes
        self._page_size = page_size
        self._snapshots = snapshots

    def find(
        self,
        chain: Chain,
        tokens: Sequence[int],
        limit: int,
        *,
        from_host: bool,
        there: Collection[PageName] = (),
    ) -> tuple[int, bool]:
        """The most pages, up to `limit`, from which every group can go on; whether somebody is about to compute the next one.

        A group that sees everything needs all of them, one with a window those that the next token sees. What another is about to
        compute or to bring to the device is not taken from the host too. Pages that are `there` count as if they were.
        """
        announced_by_others, size = self._prefixes.announced, self._page_size
        runs = [0] * len(self._groups)
        best, announced = 0, False
        for number in range(limit):
            entry = chain.entry(number, tokens)
            for group, (pool, keep) in enumerate(self._groups):
                if pool.index.find(entry, group) is not None or (
                    from_host
                    and (on_host(pool, entry, group) or (there and PageName(group, *entry) in there))
                    and entry.digest not in announced_by_others
                ):
                    runs[group] += 1
                elif keep is None:
                    return best, entry.digest in announced_by_others
                else:
                    runs[group] = 0
            position = (number + 1) * size
            if all(
                run > number - first_page_seen(keep, position, page_size=size)
                for run, (_, keep) in zip(runs, self._groups, strict=True)
            ) and (
                self._snapshots is None
                or self._snapshots.is_found(chain, tokens, number + 1, from_host=from_host, there=there)
            ):
                best = number + 1
            elif best == number:
                announced = entry.digest in announced_by_others
        return best, announced

    def take(self, chain: Chain, tokens: Sequence[int], found: int) -> tuple[GroupPages, ...]:
        """Let a sequence hold what it needs of the first `found` pages of each group."""
        return tuple(self._take(group, chain, tokens, found) for group in range(len(self._groups)))

    def absent(self, chain: Chain, tokens: Sequence[int], limit: int) -> list[PageName]:
        """Of the first `limit` pages those that lie neither on the device nor on the host, and what else they need to be of use.

        Where a sequence needs snapshots that is no page behind the last of which there may be one.
        """
        names: list[PageName] = []
        if self._snapshots is not None:
            limit = self._snapshots.last_end(limit)
            found, _ = self.find(chain, tokens, limit, from_host=True)
            if found == limit:
                return []
            names += self._snapshots.absent(chain, tokens, found=found, limit=limit)
        for number in range(limit):
            entry = chain.entry(number, tokens)
            for group, (pool, _) in enumerate(self._groups):
                if pool.index.find(entry, group) is None and not on_host(pool, entry, group):
                    names.append(PageName(group, *entry))
        return names

    def wanted(
        self, chain: Chain, tokens: Sequence[int], limit: int, there: Collection[PageName]
    ) -> Iterator[tuple[PagePool, PageName]]:
        """Of the pages that are likely `there` those that a sequence can use, in order: a snapshot first, which they need."""
        found, _ = self.find(chain, tokens, limit, from_host=True, there=there)
        if self._snapshots is not None and found:
            name = self._snapshots.name(chain, tokens, found)
            if name in there and not on_host(self._snapshots.pool, Entry(*name[1:]), name.group):
                yield self._snapshots.pool, name
        for number in range(found):
            entry = chain.entry(number, tokens)
            for group, (pool, keep) in enumerate(self._groups):
                if number < first_page_seen(keep, found * self._page_size, page_size=self._page_size):
                    continue
                name = PageName(group, *entry)
                if name in there and not on_host(pool, entry, group):
                    yield pool, name

    def _take(self, group: int, chain: Chain, tokens: Sequence[int], found: int) -> GroupPages:
        """Let a sequence hold what it needs of the first `found` pages of a group."""
        pool, keep = self._groups[group]
        pages = GroupPages(pool, keep, [SINK] * found, found * self._page_size)
        pages.num_dropped = min(found, pages.first_seen(pages.num_tokens, self._page_size))
        for number in range(pages.num_dropped, found):
            entry = chain.entry(number, tokens)
            page = pool.index.find(entry, group)
            if page is not None:
                pool.share(page)
                pages.ids[number] = page
            else:
                block = None if pool.blocks is None else pool.blocks.find(entry, group)
                assert pool.blocks is not None
                assert block is not None
                pool.blocks.hold(block)
                pages.coming[number] = block
        return pages


def on_host(pool: PagePool, entry: Entry, group: int) -> bool:
    """Whether the host has a page of this content."""
    return pool.blocks is not None and pool.blocks.find(entry, group) is not None


def sources(groups: Sequence[GroupPages], page_size: int) -> dict[str, int]:
    """Tokens of the pages that come, by the tier from which they do."""
    found = {
        number: group.pool.blocks.source(block)
        for group in groups
        if group.pool.blocks is not None
        for number, block in group.coming.items()
    }
    return {source: count * page_size for source, count in Counter(found.values()).items()}
