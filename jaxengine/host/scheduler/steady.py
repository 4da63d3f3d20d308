"""Sequences that gain a token with every step: what a step changes of them is kept for all of them together."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jaxengine.contract.arrays import Int32s
from jaxengine.contract.step_updates import Roster
from jaxengine.host.scheduler.sequence import Sequence

RECENT = 64
"""Steps whose tokens are kept here: a sequence takes its own before there are as many."""


@dataclass(frozen=True, slots=True)
class SteadyRows:
    """The rows of those who are steady, and by field what each step asks or tells of them. `places` are their slots."""

    sequences: list[Sequence]
    slots: list[int]
    places: Int32s
    roster: Roster
    ends: list[frozenset[int | None]]
    all_ends: frozenset[int | None]

    @classmethod
    def of(cls, sequences: list[Sequence]) -> SteadyRows:
        """The rows of these, in order."""
        slots, ends = [sequence.slot for sequence in sequences], [sequence.ends for sequence in sequences]
        return cls(
            sequences,
            slots,
            np.array(slots, np.int32),
            Roster(
                [sequence.request_id for sequence in sequences],
                [sequence.index for sequence in sequences],
                [sequence.admission for sequence in sequences],
            ),
            ends,
            frozenset[int | None]().union(*set(ends)),
        )

    def __len__(self) -> int:
        return len(self.slots)


NO_ROWS = SteadyRows.of([])


class Steady:
    """Who is in every step with a row of the one token that the device has.

    With each step planned such a sequence comes a position further, with each that comes back it gains a token. So two numbers
    that are the same for all say it, and a step looks only at those of whom more is to be said: another page to take or a full
    one to offer, the last token, the end. All others are behind in what they say of themselves (`num_computed`, `pending`,
    `num_tokens` and the tokens) until they are settled, which whoever looks at one that is `steady` does first.

    Args:
        num_slots: slots of sequences, numbered from 1.
    """

    def __init__(self, num_slots: int) -> None:
        self._planned = self._known = 0  # steps
        # Of each the position and the tokens of output that it would have, had no step been planned and none come back.
        self._members: dict[Sequence, tuple[int, int]] = {}
        self._rows: SteadyRows | None = NO_ROWS
        # The same by slot; and how many steps, planned and come back, make a sequence due to be looked at.
        by_slot = np.zeros((4, 1 + num_slots), np.int64)
        self._starts, self._outputs, self._due_planned, self._due_known = by_slot
        self._recent = np.zeros((1 + num_slots, RECENT), np.int32)

    @property
    def rows(self) -> SteadyRows:
        """The rows of the next step."""
        if self._rows is None:
            self._rows = SteadyRows.of([*self._members])
        return self._rows

    def join(self, sequences: list[Sequence]) -> None:
        """From the next step on these are steady: each is in all the steps in flight, and will be in all to come."""
        if not sequences:
            return
        for sequence in sequences:
            sequence.steady = True
            base = sequence.num_computed - self._planned, sequence.num_output - self._known
            self._members[sequence] = base
            self._starts[sequence.slot], self._outputs[sequence.slot] = base
        self._rows = None
        self.watch_pages(sequences)
        self.watch_tokens(sequences)

    def leave(self, sequence: Sequence) -> None:
        """A sequence is like others again, if it was steady. The rows of steps in flight are still its own."""
        if sequence.steady:
            self.settle(sequence)
            sequence.steady = False
            del self._members[sequence]
            self._rows = None

    def leave_all(self) -> None:
        """Nobody is steady any more."""
        for sequence in [*self._members]:
            self.leave(sequence)

    def settle_all(self) -> None:
        """Bring all up to date."""
        for sequence in self._members:
            self.settle(sequence)

    def settle(self, sequence: Sequence) -> None:
        """Bring up to date what one who is steady says of itself."""
        start, output = self._members[sequence]
        known = self._known
        gained = output + known - sequence.num_tokens + sequence.num_prompt
        if gained:
            begin, end = (known - gained) % RECENT, known % RECENT
            recent = self._recent[sequence.slot]
            sequence.extend(recent[begin:end] if begin < end else np.append(recent[begin:], recent[:end]))
        sequence.num_computed = start + self._planned
        sequence.pending = sequence.num_computed + 1 - sequence.num_tokens

    def watch_pages(self, sequences: list[Sequence]) -> None:
        """Have each of these looked at when its pages end, or its last token is planned."""
        slots = [sequence.slot for sequence in sequences]
        ends = [min(sequence.covered_end, sequence.max_length - 1) for sequence in sequences]
        self._due_planned[slots] = ends - self._starts[slots]

    def watch_tokens(self, sequences: list[Sequence]) -> None:
        """Have each of these, which are settled, looked at with the token that fills a page, the last one, or one of many."""
        slots = [sequence.slot for sequence in sequences]
        ends = [
            min(sequence.publishes_at, sequence.max_length, sequence.num_tokens + RECENT - 1) - sequence.num_prompt
            for sequence in sequences
        ]
        self._due_known[slots] = ends - self._outputs[slots]

    def due(self) -> list[Sequence]:
        """Those who need a page for the next step. Who has no token to plan any more leaves."""
        rows, planned = self.rows, self._planned
        due = np.flatnonzero(self._due_planned[rows.places] <= planned)
        sequences = [rows.sequences[number] for number in due.tolist()]
        for sequence in sequences:
            if self._members[sequence][0] + planned + 1 >= sequence.max_length:
                self.leave(sequence)
        return [sequence for sequence in sequences if sequence.steady]

    def plan(self) -> tuple[SteadyRows, list[int]]:
        """A step is planned: its rows, and the position of each."""
        rows = self.rows
        starts: list[int] = (self._starts[rows.places] + self._planned).tolist()
        self._planned += 1
        return rows, starts

    def take(self, rows: SteadyRows, tokens: Int32s) -> Int32s:
        """These come back for the rows of a step; how many tokens of output each has had. Those `alone` take theirs by
        themselves."""
        self._recent[rows.places, self._known % RECENT] = tokens
        return (self._outputs[rows.places] + self._known).astype(np.int32)

    def alone(self, rows: SteadyRows, tokens: list[int]) -> tuple[list[int], list[Sequence]]:
        """The numbers of the rows of those who left and of those whom these tokens end; and who else is due with them."""
        alone, due = set[int](), list[Sequence]()
        if rows is not self._rows:
            alone.update(number for number, sequence in enumerate(rows.sequences) if not sequence.steady)
        if not rows.all_ends.isdisjoint(tokens):
            pairs = zip(tokens, rows.ends, strict=True)
            alone.update(number for number, (token, ends) in enumerate(pairs) if token in ends)
        known = self._known + 1
        for number in np.flatnonzero(self._due_known[rows.places] <= known).tolist():
            sequence = rows.sequences[number]
            if number in alone:
                continue
            if sequence.num_prompt + self._members[sequence][1] + known >= sequence.max_length:
                alone.add(number)
            else:
                due.append(sequence)
        return sorted(alone), due

    def end_result(self) -> None:
        """A step has come back, and everybody has its token."""
        self._known += 1
