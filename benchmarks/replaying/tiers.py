"""Tiers behind the pages of a device that is a clock: links that take as long as their bytes, and a disk that forgets the oldest.

Moves are made beside the steps. What a step loses to them is the time in which the device writes what has come to its pages, and
reads what leaves.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.replaying.targets import Target
from buckets import Limits
from jaxengine.bench.clock import Launch, Step
from jaxengine.bench.scheduled import Rule, Scheduled
from jaxengine.contract.batch import Move
from jaxengine.contract.page_name import PageName
from jaxengine.contract.tiers import Answer, Ask, Cancel, Ended, Load, Loaded, Save, Stage, Staged, Transfer
from jaxengine.host.engine.tier_transfers import TierTransfers
from jaxengine.host.kvcache.host_tier import HostTier
from jaxengine.host.kvcache.ledger import Ledger
from jaxengine.host.kvcache.pool import PagePool

TOKEN_BYTES = 32 * 2 * 8 * 128 * 2
"""Of Llama-3.1-8B's cache in bfloat16."""
LINK_BYTES_S = 32e9
"""Each way between a v6e and its host. Assumed: nobody publishes it."""
DISK_READ_S, DISK_WRITE_S = 7e9, 4e9
"""Of an NVMe disk."""
ASK_S = 0.5e-3
CHUNK = 16
"""Pages that come together."""
HBM_BYTES_S = 1.64e12


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes of the host's memory, and of the disk; 0 is none."""

    host: float
    disk: float

    @classmethod
    def parse(cls, text: str) -> Sizes:
        """Read gigabytes such as `200`, or `200+1000` with a disk."""
        host, _, disk = text.partition("+")
        return cls(float(host) * 1e9, float(disk or 0) * 1e9)


NO_TIERS = Sizes(0, 0)


@dataclass
class Links:
    """The tiers of a device on a clock. What ends is told in the order of the times."""

    clock: Callable[[], float]
    block_bytes: int
    disk_blocks: int
    disk: OrderedDict[PageName, None] = field(default_factory=OrderedDict)
    traffic: dict[str, Any] = field(default_factory=dict)
    moved: int = 0
    block_s: Sequence[float] = ()
    _free: dict[str, float] = field(default_factory=dict)
    _due: list[tuple[float, Ended]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.block_s = (self.block_bytes / LINK_BYTES_S,)

    def begin(self, transfers: Sequence[Transfer]) -> None:
        for transfer in transfers:
            match transfer:
                case Stage(moves):
                    for first in range(0, len(moves), CHUNK):
                        part = moves[first : first + CHUNK]
                        self._end(Staged(part), "host to device", len(part), LINK_BYTES_S)
                case Cancel(moves):
                    gone = set(moves)
                    self._due = [
                        (due, news)
                        for due, news in self._due
                        if not isinstance(news, Staged) or not gone & set(news.moves)
                    ]
                case Ask(number, names):
                    self._due.append((self.clock() + ASK_S, Answer(number, tuple(name in self.disk for name in names))))
                case Load(pool, block, name):
                    there = name in self.disk
                    if there:
                        self.disk.move_to_end(name)
                    self._end(Loaded(pool, block, "disk" if there else None), "disk to host", there, DISK_READ_S)
                case Save(_, _, name):
                    if name not in self.disk:
                        self._take("host to disk", 1, DISK_WRITE_S)
                    self.disk[name] = None
                    if len(self.disk) > self.disk_blocks:
                        self.disk.popitem(last=False)

    def ended(self) -> Sequence[Ended]:
        now = self.clock()
        ended = [news for due, news in self._due if due <= now]
        self._due = [(due, news) for due, news in self._due if due > now]
        return ended

    def wait(self, timeout_s: float) -> None:
        """Whoever has the clock lets time pass."""

    def made(self, moves: Sequence[Move]) -> None:
        """Moves of a batch: pages that leave take the link, and all of them the device's memory."""
        leaving = sum(type(move).__name__ == "ToHost" for move in moves)
        if leaving:
            self._take("device to host", leaving, LINK_BYTES_S)
        self.moved += len(moves)

    @property
    def next_end(self) -> float | None:
        """When something ends next."""
        return min((due for due, _ in self._due), default=None)

    def _end(self, news: Ended, link: str, blocks: int, bytes_s: float) -> None:
        self._due.append((self._take(link, blocks, bytes_s), news))

    def _take(self, link: str, blocks: int, bytes_s: float) -> float:
        seconds = blocks * self.block_bytes / bytes_s
        free = max(self.clock(), self._free.get(link, 0.0)) + seconds
        self._free[link] = free
        self.traffic[link] = self.traffic.get(link, 0) + blocks * self.block_bytes
        return free


class Tiered(Scheduled):
    """The engine's scheduler with tiers behind its pages."""

    def __init__(self, limits: Limits, ledger: Ledger, rule: Rule, links: Links, *, clock: Callable[[], float]) -> None:
        super().__init__(limits, ledger, rule, clock=clock)
        self.links = links
        tier = ledger.tier
        assert tier is not None
        self._transfers = TierTransfers(self.scheduler, tier, _Mover(links))

    def schedule(self) -> Step | None:
        self._transfers.take_ended()
        before = self.links.moved
        step = super().schedule()
        self._transfers.begin()
        if step is None:
            self._transfers.move(wait=False)
            return None
        self.links.made(step.plan[0].moves)
        self._transfers.begin_later()
        moved = self.links.moved - before
        if moved:
            launches = (*step.launches, Copy(0, 0, (), num_bytes=moved * self.links.block_bytes))
            return Step(launches, step.sampled, step.tokens, step.plan)
        return step

    @property
    def resumes_at(self) -> float | None:
        return self.links.next_end if self.scheduler.waits_for_pages else None


@dataclass(frozen=True, slots=True)
class Copy(Launch):
    """Pages that are written, or read, on the device, and nothing else."""

    num_bytes: int = 0


@dataclass(frozen=True)
class WithCopies:
    """A device on which pages that move take the time of their bytes, read and written."""

    target: Target

    def seconds(self, launches: Iterable[Launch], sampled: int) -> float:
        launches = tuple(launches)
        copies = sum(launch.num_bytes for launch in launches if isinstance(launch, Copy))
        rest = [launch for launch in launches if not isinstance(launch, Copy)]
        return self.target.seconds(rest, sampled) + 2 * copies / HBM_BYTES_S


class _Mover:
    """The runner as far as transfers know it."""

    def __init__(self, links: Links) -> None:
        self.tiers = links
        self.move = links.made


def make_ledger(sizes: Sizes, num_pages: int, page_size: int) -> Ledger:
    """The accounts of the pages, and with a host of the blocks behind them."""
    blocks = int(sizes.host / (TOKEN_BYTES * page_size))
    tier = HostTier([blocks], most_leaving=2 * CHUNK, outer=sizes.disk > 0) if blocks else None
    return Ledger([PagePool(num_pages)], page_size, tier=tier)


def make_links(sizes: Sizes, page_size: int, clock: Callable[[], float]) -> Links:
    """The links of tiers of these sizes."""
    block_bytes = TOKEN_BYTES * page_size
    return Links(clock, block_bytes, int(sizes.disk / block_bytes))
