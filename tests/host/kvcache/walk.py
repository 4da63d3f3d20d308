"""A ledger over a pretend device whose slots hold what real keys and values depend on."""

from __future__ import annotations

import random
from dataclasses import dataclass
from operator import le

from jaxengine.host.kvcache import SINK, Ledger, PagePool

PAGE_SIZE = 4
AHEAD = 5
"""Positions that groups with a window cover beyond what is computed."""


@dataclass
class Sequence:
    tokens: list[int]
    salt: str | None
    computed: int
    granted: int

    def content(self, position: int) -> tuple[str | None, tuple[int, ...]]:
        """Keys and values at a position follow from the salt and every token up to it."""
        return (self.salt, tuple(self.tokens[: position + 1]))


class Walk:
    """Operations on a ledger, each checked against what a device would read and write through the same pages.

    `keeps` are those of the groups of each pool, and `num_pages` the pages for each group in it.
    """

    def __init__(self, num_pages: int, keeps: tuple[tuple[int | None, ...], ...] = ((None,),)) -> None:
        self.pools = [PagePool(num_pages * len(of_pool), of_pool) for of_pool in keeps]
        self.ledger = Ledger(self.pools, PAGE_SIZE)
        self.live: dict[int, Sequence] = {}
        self._has_windows = any(keep is not None for of_pool in keeps for keep in of_pool)
        self._groups = [(pool, keep) for pool, of_pool in enumerate(keeps) for keep in of_pool]
        self._slots: dict[tuple[int, int, int], object] = {}
        self._last_id = 0

    def add(self, tokens: list[int], *, salt: str | None, max_cached: int | None) -> int:
        sequence_id = self._new_id()
        cached = self.ledger.add(sequence_id, tokens, self.ledger.chain(salt), max_cached=max_cached)
        assert cached < len(tokens)
        assert cached % PAGE_SIZE == 0
        assert max_cached is None or cached <= max_cached
        self.live[sequence_id] = Sequence(list(tokens), salt, cached, cached)
        self._read_back(sequence_id)
        return sequence_id

    def grow(self, sequence_id: int, more: int, *, token: int = 0) -> bool:
        """Grant `more` positions; tokens that are not known yet are `token`."""
        sequence = self.live[sequence_id]
        wanted = sequence.granted + more
        before, available = self.ledger.pages(sequence_id).tolist(), self.ledger.pools.num_available
        terms = {"start": sequence.computed, "ahead": AHEAD}
        needed = self.ledger.pages_needed(sequence_id, wanted, **terms)
        grown = self.ledger.grow(sequence_id, wanted, **terms)
        fits = all(map(le, needed, available))
        if grown:
            assert fits or self._has_windows
            sequence.tokens += [token] * (wanted - len(sequence.tokens))
            sequence.granted = self.ledger.covered(sequence_id)
        else:
            assert not fits
            if not self._has_windows:  # what a window no longer sees goes back all the same
                assert self.ledger.pages(sequence_id).tolist() == before
                assert self.ledger.pools.num_available == available
        return grown

    def finish_prompt(self, sequence_id: int) -> bool:
        sequence = self.live[sequence_id]
        return self.grow(sequence_id, max(1, len(sequence.tokens) - sequence.granted))

    def step(self, *, order: random.Random) -> None:
        """Write the granted positions, read every sequence's past, and commit, in any order of the sequences."""
        live = list(self.live.items())
        order.shuffle(live)
        for sequence_id, sequence in live:
            for (pool, _), pages in zip(self._groups, self.ledger.pages(sequence_id).tolist(), strict=True):
                for position in range(sequence.computed, sequence.granted):
                    assert pages[position // PAGE_SIZE] != SINK
                    self._slots[pool, pages[position // PAGE_SIZE], position % PAGE_SIZE] = sequence.content(position)
        for sequence_id, sequence in live:
            sequence.computed = sequence.granted
            self._read_back(sequence_id)
            self.ledger.commit(sequence_id, sequence.tokens, sequence.computed)

    def release(self, sequence_id: int) -> None:
        self.ledger.release(sequence_id)
        del self.live[sequence_id]

    def reset(self) -> None:
        assert self.ledger.reset_prefix_cache() == (not self.live)

    def check(self) -> None:
        self.ledger.check()
        tables = [self.ledger.pages(sequence_id).tolist() for sequence_id in self.live]
        for number, (pool, available) in enumerate(zip(self.pools, self.ledger.pools.num_available, strict=True)):
            mine = [group for group, (of, _) in enumerate(self._groups) if of == number]
            held = {page for table in tables for group in mine for page in table[group]} - {SINK}
            assert len(held) + available == pool.num_pages - 1

    def _new_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def _read_back(self, sequence_id: int) -> None:
        """What the next token sees in every group is what belongs there."""
        sequence = self.live[sequence_id]
        for (pool, keep), pages in zip(self._groups, self.ledger.pages(sequence_id).tolist(), strict=True):
            first = 0 if keep is None else max(0, sequence.computed + 1 - keep)
            for position in range(first, sequence.computed):
                found = self._slots.get((pool, pages[position // PAGE_SIZE], position % PAGE_SIZE))
                assert found == sequence.content(position), f"sequence {sequence_id} reads {found} at {position}"


def prompt(length: int, odd: int | None) -> list[int]:
    """Nearly all prompts are alike, so that they share prefixes all the time and part at every position."""
    return [int(position == odd) for position in range(length)]
