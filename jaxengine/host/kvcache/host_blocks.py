"""The host's blocks for the pages of one pool, and what is under way between them and the device."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

from jaxengine.contract.batch import FromHost, Move, ToHost
from jaxengine.contract.page_name import PageName
from jaxengine.contract.tiers import Load, Save, Transfer
from jaxengine.host.kvcache.pages import LedgerError, Pages
from jaxengine.host.kvcache.prefix import Entry, PrefixIndex

MOST_ARRIVING = 1 / 2
"""Of the blocks of a pool: more are not given up for what comes from outer stores."""

TOGETHER = 16
"""Pages that one launch takes; of what is larger it takes fewer, each of which counts as more pages then."""
SHORT = 1 / 4
"""Of a pool's pages: where fewer are free, what was filled goes to the host ahead of its eviction."""
LONGEST_BACKLOG = 1 << 16
"""Filled pages that wait for that; those that have waited longest make room."""


@dataclass
class Underway:
    """What has been decided and not been given to the device half yet: in the order in which it has to be asked for.

    `transfers` come before `moves`, `later` after both. At most `most_leaving` pages leave the device with one step: the device
    holds copies of them until the host has read them. Of what is evicted beyond that the content is forgotten.
    """

    most_leaving: int
    moves: list[Move] = field(default_factory=list)
    transfers: list[Transfer] = field(default_factory=list)
    later: list[Transfer] = field(default_factory=list)
    num_leaving: int = 0
    num_dropped: int = 0
    written: set[tuple[int, int]] = field(default_factory=set)
    """Pages, with their pools, that hold what they are to hold only when `moves` are made."""

    def clear(self) -> None:
        """No page is to move. What was promised to blocks that are loaded still comes."""
        self.moves.clear()
        self.written.clear()
        self.later = [transfer for transfer in self.later if isinstance(transfer, Load)]
        self.num_leaving = 0


class HostBlocks:
    """Blocks `0 .. num_blocks - 1` of a pool: each is free, idle (its content can be found), held by who brings that to the
    device, or arriving (its content is under way).

                 leave, load             settle, loaded           hold
        free  ----------------> arriving ----------------> idle <-------> held
          ^                                                  |     let_go
          +--------------- the one idle for longest ---------+

    Args:
        saves: what arrives from the device is offered to outer stores.
        together: pages that one launch takes.

    Attributes:
        device: what the pages of the device hold, and how many are free.
    """

    def __init__(
        self, pool: int, num_blocks: int, underway: Underway, *, saves: bool = False, together: int = TOGETHER
    ) -> None:
        self.pool = pool
        self.num_blocks = num_blocks
        self.together = together
        self.index = PrefixIndex()
        self.saves = saves
        self.readers: Counter[int] = Counter()
        self.device: tuple[PrefixIndex, Pages] | None = None
        self._backlog: deque[tuple[int, Entry, int]] = deque(maxlen=LONGEST_BACKLOG)
        self._sources: dict[int, str] = {}
        self._underway = underway
        self._free = list(range(num_blocks - 1, -1, -1))
        self._leaving: dict[tuple[int, bytes], tuple[int, Entry]] = {}
        self._loading: dict[int, PageName | None] = {}  # None: nobody wants it any more

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_arriving(self) -> int:
        return len(self._leaving) + len(self._loading)

    @property
    def num_loading(self) -> int:
        return len(self._loading)

    def find(self, entry: Entry, group: int) -> int | None:
        """The block that holds exactly this content of a cache group; it is the last to be given up from now on."""
        block = self.index.find(entry, group)
        if block is not None and block not in self.readers:
            self.index.wake(block)
            self.index.rest(block)
        return block

    def hold(self, block: int) -> None:
        """Keep a block that was found from being given up until `let_go`; several may."""
        self.index.wake(block)
        self.readers[block] += 1

    def let_go(self, block: int) -> None:
        """Count one who holds it less."""
        self.readers[block] -= 1
        if not self.readers[block]:
            del self.readers[block]
            self.index.rest(block)
            self._sources.pop(block, None)

    def leave(self, page: int, entry: Entry, group: int) -> None:
        """Let what a page of the device holds go to a block, unless it is there or on its way."""
        if self.find(entry, group) is not None or (group, entry.digest) in self._leaving:
            return
        may_leave = self._may_leave and (self.pool, page) not in self._underway.written
        block = self._take() if may_leave else None
        if block is None:
            self._underway.num_dropped += 1
            return
        self._underway.num_leaving += TOGETHER // self.together
        self._underway.moves.append(ToHost(self.pool, page, block))
        self._leaving[group, entry.digest] = block, entry

    def offer(self, page: int, entry: Entry, group: int) -> None:
        """A page of the device was filled: it may leave while nothing more urgent does."""
        self._backlog.append((page, entry, group))

    @property
    def drains(self) -> bool:
        """Whether there are filled pages that should leave: any where there are outer stores, else many where pages get short."""
        if not self._backlog or self.device is None:
            return False
        _, pages = self.device
        return self.saves or (len(self._backlog) >= self.together and pages.num_free < SHORT * pages.num_pages)

    def drain(self) -> None:
        """Let filled pages leave, as many as may with one step."""
        assert self.device is not None
        index, _ = self.device
        while self._backlog and self._may_leave:
            page, entry, group = self._backlog.popleft()
            if index.find(entry, group) == page:  # or else it has gone already
                self.leave(page, entry, group)

    def settle(self) -> None:
        """The moves that were decided have been given to the device: what they bring can be found."""
        for (group, _), (block, entry) in self._leaving.items():
            self._found(block, entry, group)
            if self.saves:
                self._underway.later.append(Save(self.pool, block, PageName(group, *entry)))
        self._leaving.clear()

    def come_back(self, block: int, page: int) -> FromHost:
        """The move that writes a block's content to a page."""
        return FromHost(self.pool, block, page)

    def load(self, name: PageName) -> bool:
        """Let a page come from an outer store, unless it does; False where no block is left for it."""
        if name in self._loading.values():
            return True
        block = None if self.num_arriving >= self.num_blocks * MOST_ARRIVING else self._take()
        if block is None:
            return False
        self._loading[block] = name
        self._underway.later.append(Load(self.pool, block, name))
        return True

    def loaded(self, block: int, source: str | None) -> PageName | None:
        """What was to be loaded to a block is there, or is not to be had; which page that is, if anybody wants it."""
        name = self._loading.pop(block)
        if name is None or source is None:
            self._free.append(block)
        elif self._found(block, Entry(*name[1:]), name.group):
            self._sources[block] = source
        return name

    def source(self, block: int) -> str:
        """Where the content of a block came from, if nobody has taken it yet; else it is the host's."""
        return self._sources.get(block, "host")

    def forget(self) -> None:
        """Forget all content. Blocks that something is being loaded to are free when it has come."""
        self._backlog.clear()
        while self.index.num_idle:
            self._free.append(self.index.evict())
        self._free += [block for block, _ in self._leaving.values()]
        self._leaving.clear()
        self._loading = dict.fromkeys(self._loading)

    def check(self, holders: Counter[int]) -> None:
        """Free, idle, held and arriving blocks are all blocks, each once, and held by as many as say so.

        Raises:
            LedgerError: the message names the blocks.
        """
        who = f"host blocks of pool {self.pool}:"
        leaving = [block for block, _ in self._leaving.values()]
        states = Counter([*self._free, *self.index.idle_pages(), *self.readers, *leaving, *self._loading])
        if twice := [block for block, count in states.items() if count > 1]:
            raise LedgerError(f"{who} {sorted(twice)} are more than one of free, idle, held and arriving")
        if lost := set(range(self.num_blocks)) ^ states.keys():
            raise LedgerError(f"{who} {sorted(lost)} are not there, or neither free, idle, held nor arriving")
        if self.readers != holders:
            raise LedgerError(f"{who} {dict(self.readers)} are counted as held, and {dict(holders)} are")
        if hidden := [block for block in self.readers if block not in self.index]:
            raise LedgerError(f"{who} {sorted(hidden)} are held and cannot be found")

    @property
    def _may_leave(self) -> bool:
        return self._underway.num_leaving + TOGETHER // self.together <= self._underway.most_leaving

    def _take(self) -> int | None:
        if self._free:
            return self._free.pop()
        if not self.index.num_idle:
            return None
        block = self.index.evict()
        self._sources.pop(block, None)
        return block

    def _found(self, block: int, entry: Entry, group: int) -> bool:
        """What a block holds can be found, unless equal content can already."""
        is_new = self.index.insert(entry, group, block)
        if is_new:
            self.index.rest(block)
        else:
            self._free.append(block)
        return is_new
