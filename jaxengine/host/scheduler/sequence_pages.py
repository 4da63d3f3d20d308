"""The pages of sequences: found, grown, offered to others, waited for, and given back."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from functools import partial
from typing import cast

from jaxengine.contract.arrays import Int32s
from jaxengine.contract.batch import FromHost
from jaxengine.contract.tiers import Answer, Loaded
from jaxengine.host.kvcache.ledger import Ledger
from jaxengine.host.scheduler.arrivals import Arrivals
from jaxengine.host.scheduler.fetches import Fetches
from jaxengine.host.scheduler.limits import SchedulerLimits
from jaxengine.host.scheduler.policy import reserve_pages
from jaxengine.host.scheduler.sequence import Sequence, State
from jaxengine.host.scheduler.slot_snapshots import plan_next


class Placed(Enum):
    """What became of a waiting sequence: it may run, it should wait for another's pages or for outer stores, there are too few
    pages."""

    NOW = "now"
    AWAY = "away"
    LATER = "later"
    NO_ROOM = "no room"


class SequencePages:
    """What sequences hold of the ledger, and what they wait for of tiers behind the device.

    Where a part of its prefix lies on the host a sequence has a place at once, and computes nothing until the pages are there.

    Args:
        clock: seconds, for how long is waited.

    Attributes:
        token_s: what a prompt's token costs at the least.
        capacity_tokens: of one sequence that has all pages to itself.
        arrivals: who waits for pages to come to the device.
        fetches: who waits for outer stores.
    """

    def __init__(self, limits: SchedulerLimits, ledger: Ledger, *, clock: Callable[[], float]) -> None:
        self.page_size = ledger.page_size
        # Where windows are, pages are found for what a step may compute, not for a whole prompt of which little will be kept.
        self._ahead = limits.max_num_batched_tokens
        self.token_s = 0.0
        self.capacity_tokens = ledger.pools.longest_sequence(page_size=self.page_size, ahead=self._ahead)
        self.arrivals = Arrivals(clock)
        self.fetches = Fetches(clock)
        self._ledger = ledger
        self._changed: dict[Sequence, None] = {}

    def place(self, sequence: Sequence, *, running: int) -> Placed:
        """Find pages for all tokens of a waiting sequence, beside so many that run."""
        ledger, tokens = self._ledger, sequence.num_tokens
        if sequence.from_outer and self._asks_outer_stores(sequence):
            return Placed.AWAY
        self._add(sequence, from_host=sequence.from_host)
        if sequence.from_host and not self._saves_time(sequence):
            self.release(sequence)
            self._add(sequence, from_host=False)
        if ledger.awaits(sequence.sequence_id):
            self.release(sequence)
            return Placed.LATER
        fits = ledger.leaves(
            sequence.sequence_id,
            tokens,
            start=sequence.num_computed,
            ahead=self._ahead,
            reserve=partial(reserve_pages, running=running),
        )
        if not fits or not self._cover(sequence, tokens):
            self.release(sequence)
            return Placed.NO_ROOM
        sequence.note_published(sequence.num_computed, page_size=self.page_size)
        if moves := ledger.coming(sequence.sequence_id):
            assert ledger.tier is not None
            ledger.tier.stage(moves)
            self.arrivals.expect(sequence, moves)
            sequence.arriving = True
        if ledger.snapshots is not None:
            plan_next(sequence, ledger.snapshots)
        return Placed.NOW

    def grow(self, sequence: Sequence, length: int) -> bool:
        """Let its pages cover so many positions, and the rest of the last page; False when there are too few."""
        return self._cover(sequence, -(-length // self.page_size) * self.page_size)

    def append(self, sequences: list[Sequence]) -> bool:
        """Let each of these, whose pages are full, have another one; False, and nothing done, where `grow` is to see to each."""
        tables = self._ledger.append([sequence.sequence_id for sequence in sequences])
        if tables is None:
            return False
        for sequence, pages in zip(sequences, tables, strict=True):
            sequence.pages = pages
            sequence.covered_end += self.page_size
            self._changed[sequence] = None
        return True

    def shrink(self, sequence: Sequence, length: int) -> bool:
        """Take back its pages behind so many positions; whether there were any."""
        if length + self.page_size > sequence.covered_end or not self._ledger.shrink(sequence.sequence_id, length):
            return False
        sequence.covered_end = self._ledger.covered(sequence.sequence_id)
        sequence.pages = self._ledger.pages(sequence.sequence_id)
        self._changed[sequence] = None
        return True

    def release(self, sequence: Sequence) -> None:
        """A sequence holds no pages any more."""
        if sequence.arriving:
            assert self._ledger.tier is not None
            self._ledger.tier.cancel(self.arrivals.give_up(sequence))
        self._ledger.release(sequence.sequence_id)
        sequence.forget_pages()

    def publish(self, sequence: Sequence) -> None:
        """Offer full pages of `sequence.findable` tokens to the prefix index.

        A launched step is enough: whoever finds a page reads it in a later one.
        """
        tokens = sequence.findable
        end = min(sequence.num_computed, len(tokens)) // self.page_size * self.page_size
        if end >= sequence.publishes_at:
            sequence.note_published(end, page_size=self.page_size)
            self._ledger.commit(sequence.sequence_id, cast("list[int]", tokens), end)

    def take_tables(self) -> tuple[tuple[int, Int32s], ...]:
        """The page tables of running sequences that changed since this was called last, by slot."""
        if not self._changed:
            return ()
        changed, self._changed = self._changed, {}
        return tuple((sequence.slot, sequence.pages) for sequence in changed if sequence.state is State.RUNNING)

    def take_arrivals(self, moves: Iterable[FromHost]) -> list[Sequence]:
        """Let these moves be made, which are staged; the sequences that have all that they have waited for."""
        wanted, complete = self.arrivals.take(moves)
        if wanted:
            assert self._ledger.tier is not None
            self._ledger.tier.write(wanted)
        for sequence in complete:
            sequence.arriving = False
            self._ledger.arrived(sequence.sequence_id, cast("list[int]", sequence.findable))
        return complete

    def take_answer(self, news: Answer) -> Sequence | None:
        """Let pages come that an outer store has; the sequence that has asked, where it has nothing to wait for."""
        answered = self.fetches.answer(news.number, news.there)
        if answered is None:
            return None
        sequence, there = answered
        coming = self._ledger.load(cast("list[int]", sequence.findable), sequence.chain, sequence.max_cached, there)
        if not coming:
            return sequence
        self.fetches.expect(sequence, coming)
        return None

    def take_loaded(self, news: Loaded) -> list[Sequence]:
        """A page has come to the host, or will not; who has waited for it alone."""
        assert self._ledger.tier is not None
        name = self._ledger.tier.loaded(news)
        return [] if name is None else self.fetches.loaded(name)

    def _add(self, sequence: Sequence, *, from_host: bool) -> None:
        sequence.num_computed = self._ledger.add(
            sequence.sequence_id,
            cast("list[int]", sequence.findable),
            sequence.chain,
            max_cached=sequence.max_cached,
            from_host=from_host,
        )

    def _saves_time(self, sequence: Sequence) -> bool:
        """Whether what was found on the host is there sooner than it could be computed."""
        seconds = self._ledger.seconds_to_come(sequence.sequence_id)
        return seconds <= self.token_s * sum(self._ledger.from_tiers(sequence.sequence_id).values())

    def _asks_outer_stores(self, sequence: Sequence) -> bool:
        """Ask outer stores for what neither device nor host has of a sequence; False where there is nothing to ask."""
        tier = self._ledger.tier
        if tier is None or not tier.outer:
            return False
        names = self._ledger.absent(cast("list[int]", sequence.findable), sequence.chain, sequence.max_cached)
        if not names:
            return False
        tier.ask(self.fetches.ask(sequence, names))
        return True

    def _cover(self, sequence: Sequence, end: int) -> bool:
        if not self._ledger.grow(sequence.sequence_id, end, start=sequence.least_computed, ahead=self._ahead):
            return False
        sequence.covered_end = self._ledger.covered(sequence.sequence_id)
        pages = self._ledger.pages(sequence.sequence_id)
        if pages is not sequence.pages:
            sequence.pages = pages
            self._changed[sequence] = None
        return True
