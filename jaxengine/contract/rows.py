"""The rows of a step, each a run of new tokens of one sequence, and what is asked of them.

Drafts are tokens that may follow the last one, computed in one row with it. Which of them are right (equal to what is sampled in
their place) is decided on the device, so that the next step can be launched before the host knows how long a sequence is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Sample:
    """Sample the token after each of the row's last `last` tokens, as if those before it were the sequence's own.

    All but the first of these are drafts. What stands behind a wrong one is nothing to the sequence.
    """

    last: int = 1


ONE = Sample()
"""What is asked of nearly all rows: the token after the last one."""


@lru_cache
def sample(last: int) -> Sample:
    """One `Sample` for all rows that are asked for as much."""
    return Sample(last) if last > 1 else ONE


@dataclass(frozen=True, slots=True)
class Score:
    """Report the log probability of each of `targets`: of token j + 1 of the row (or what follows it) after token j.

    They belong to the row's first places. With `sample` there is one less than the row has tokens, and the token after the last
    is sampled.
    """

    targets: tuple[int, ...]
    sample: bool


@dataclass(frozen=True, slots=True)
class Pool:
    """Bring up what the model pools of the row, or with `each` of every token of it.

    An engine that generates has the final hidden state of the row's last token. What is of more than the last token is asked of
    rows that are whole prompts.
    """

    each: bool = False


@dataclass(frozen=True, slots=True)
class Align(Pool):
    """Bring up where in the sound the tokens of a text are heard, of a row that is a whole prompt.

    That is of each token from the one at `first` on how much it attends to each of the first `frames` places, `[tokens, frames]`,
    by the model's heads for that.
    """

    first: int = 0
    frames: int = 0


Want = Sample | Score | Pool | None
"""What is asked of a row; None of one whose prompt goes on in a later row."""


class Row(NamedTuple):
    """A run of `num_tokens` new tokens of one sequence, from position `start` on.

    `tokens` None are those that this slot has on the device: the token it sampled last, and where there are more the drafts that
    the device keeps behind it. Such a row starts where the sequence ends on the device, and `start` is the furthest that may be:
    with all drafts right that are under way.
    """

    slot: int
    tokens: tuple[int, ...] | None
    num_tokens: int
    start: int
    want: Want

    @property
    def num_kept(self) -> int:
        """Places whose final hidden states are needed: the row's last ones, but for a `Score` that does not sample all."""
        want = self.want
        if isinstance(want, Sample):
            return want.last
        if isinstance(want, Score):
            return len(want.targets) + want.sample
        return 0 if want is None else 1


class Rows:
    """The rows of a step by field, a list of each: nothing is made for a row that is like all the others, which most are.

    They are added while a step is put together; whoever is given them does not.
    """

    __slots__ = ("counts", "slots", "starts", "tokens", "wants")

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self.slots: list[int] = []
        self.tokens: list[tuple[int, ...] | None] = []
        self.counts: list[int] = []
        self.starts: list[int] = []
        self.wants: list[Want] = []
        for row in rows:
            self.add(row)

    def add(self, row: Row) -> None:
        """Add a row."""
        self.slots.append(row.slot)
        self.tokens.append(row.tokens)
        self.counts.append(row.num_tokens)
        self.starts.append(row.start)
        self.wants.append(row.want)

    def add_next_tokens(self, slots: Sequence[int], starts: Sequence[int], num_drafts: int = 0) -> None:
        """Add a row for the token that each of these slots sampled last and its drafts, to sample those after them."""
        self.slots += slots
        self.tokens += [None] * len(slots)
        self.counts += [1 + num_drafts] * len(slots)
        self.starts += starts
        self.wants += [sample(1 + num_drafts)] * len(slots)

    def __getitem__(self, number: int) -> Row:
        return Row(
            slot=self.slots[number],
            tokens=self.tokens[number],
            num_tokens=self.counts[number],
            start=self.starts[number],
            want=self.wants[number],
        )

    def __iter__(self) -> Iterator[Row]:
        return (self[number] for number in range(len(self)))

    def __len__(self) -> int:
        return len(self.slots)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rows) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]  # lists are not either
