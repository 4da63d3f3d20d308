"""What moves between the tiers of the KV cache beside the steps: asked for at once, done some time later.

device pages   --ToHost, a batch's move-->   host blocks   --Save-->   outer stores
               <--Stage, then FromHost--                   <--Load--

Whoever asks goes on. What is asked for is done in the order in which it was, with the moves of batches among it: a block may be
given to other content as soon as what reads it has been asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from jaxengine.contract.batch import FromHost
from jaxengine.contract.page_name import PageName


@dataclass(frozen=True, slots=True)
class Stage:
    """Copy what these blocks hold to the device, beside its pages, so that a batch with these moves need not wait for it."""

    moves: tuple[FromHost, ...]


@dataclass(frozen=True, slots=True)
class Cancel:
    """Let go of what is or will be staged of these moves: they will not be made."""

    moves: tuple[FromHost, ...]


@dataclass(frozen=True, slots=True)
class Ask:
    """Find out which of these pages an outer store likely has."""

    number: int
    names: tuple[PageName, ...]


@dataclass(frozen=True, slots=True)
class Load:
    """Fetch a page from an outer store to a block, into which nothing else goes meanwhile."""

    pool: int
    block: int
    name: PageName


@dataclass(frozen=True, slots=True)
class Save:
    """Offer what a block holds to the outer stores."""

    pool: int
    block: int
    name: PageName


Transfer = Stage | Cancel | Ask | Load | Save


@dataclass(frozen=True, slots=True)
class Staged:
    """These moves can be made without waiting: some of one `Stage` or of several."""

    moves: tuple[FromHost, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """Which pages of an `Ask` there likely are."""

    number: int
    there: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class Loaded:
    """What became of a `Load`: the `source` that had the page (`disk`, `p2p`); None, and nothing in the block: none had it."""

    pool: int
    block: int
    source: str | None


Ended = Staged | Answer | Loaded


@dataclass(frozen=True, slots=True)
class TierTraffic:
    """Bytes that went one way between two tiers since the start, and the seconds that it took while others went on."""

    bytes: int = 0
    seconds: float = 0.0

    def plus(self, count: int, seconds: float) -> TierTraffic:
        """With so much more."""
        return TierTraffic(self.bytes + count, self.seconds + seconds)


@dataclass(frozen=True, slots=True)
class TierStats:
    """What the host's blocks hold, and what moved. `traffic` is by way, such as `device to host` or `disk to host`.

    The content of `num_cached_blocks` can be found, that of `num_arriving_blocks` is under way. `num_dropped_pages` would have
    gone to the host and did not, because too many left the device at once.
    """

    num_cached_blocks: int = 0
    num_arriving_blocks: int = 0
    num_free_blocks: int = 0
    num_dropped_pages: int = 0
    traffic: Mapping[str, TierTraffic] = field(default_factory=dict)

    @property
    def num_blocks(self) -> int:
        """All blocks of the host."""
        return self.num_cached_blocks + self.num_arriving_blocks + self.num_free_blocks

    @classmethod
    def total(cls, each: Sequence[TierStats]) -> TierStats:
        """Of several engines together."""
        traffic: dict[str, TierTraffic] = {}
        for stats in each:
            for way, more in stats.traffic.items():
                traffic[way] = traffic.get(way, TierTraffic()).plus(more.bytes, more.seconds)
        return cls(
            num_cached_blocks=sum(stats.num_cached_blocks for stats in each),
            num_arriving_blocks=sum(stats.num_arriving_blocks for stats in each),
            num_free_blocks=sum(stats.num_free_blocks for stats in each),
            num_dropped_pages=sum(stats.num_dropped_pages for stats in each),
            traffic=traffic,
        )


NO_TIER_STATS = TierStats()
"""Those of an engine with nothing behind its pages."""


class Tiers(Protocol):
    """The tiers behind the device's pages, as the loop sees them. Nothing here waits but `wait`."""

    def begin(self, transfers: Sequence[Transfer]) -> None:
        """Begin what is asked for, in this order and behind what was asked for before."""
        ...

    def ended(self) -> Sequence[Ended]:
        """What has ended since this was called last."""
        ...

    def wait(self, timeout_s: float) -> None:
        """Return when `ended` has something to tell, or after so many seconds."""
        ...

    @property
    def block_s(self) -> Sequence[float]:
        """Seconds that a block of each pool takes to the device, as measured before the first step; empty: it was not."""
        ...

    @property
    def traffic(self) -> dict[str, TierTraffic]:
        """As in `TierStats`."""
        ...
