"""What steps changed: by column for sequences that gained a token each, which nearly all do, and one by one for the others."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import chain
from typing import Any, NamedTuple, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from jaxengine.contract.arrays import Int32s
from jaxengine.contract.batch import RowLogprobs
from jaxengine.contract.updates import Admission, SequenceUpdate, by_field, from_fields

Value = TypeVar("Value")

KEPT_ROSTERS = 16
"""Rosters that are known by what they were pickled to: those of as many engines, each of which tells of one at a time."""


class Roster:
    """Sequences that gain a token each, step after step: by column what stays as it is meanwhile.

    It is itself, whatever its columns are, so what was looked up for all of it may be kept beside it. That holds between
    processes too: it is pickled once, and what was unpickled last is found again.
    """

    def __init__(self, request_ids: Sequence[str], indices: Sequence[int], admissions: Sequence[Admission]) -> None:
        self.request_ids = request_ids
        self.indices = indices
        self.admissions = admissions

    def __len__(self) -> int:
        return len(self.request_ids)

    def __reduce__(self) -> tuple[Any, ...]:
        return _roster, (self._pickled,)

    @cached_property
    def _pickled(self) -> bytes:
        admissions = [*map(tuple, self.admissions)]
        return pickle.dumps((self.request_ids, self.indices, admissions), pickle.HIGHEST_PROTOCOL)


@lru_cache(KEPT_ROSTERS)
def _roster(pickled: bytes) -> Roster:
    request_ids, indices, admissions = pickle.loads(pickled)
    return Roster(request_ids, indices, [*map(Admission._make, admissions)])


class Gained(NamedTuple):
    """A token each for sequences of a roster: those of its `rows`, None being all.

    `tokens` and `positions` `[n]` and `logprobs` are as in updates; `logprobs` None says that none were asked for.
    """

    roster: Roster
    tokens: Int32s
    positions: Int32s
    logprobs: tuple[RowLogprobs | None, ...] | None = None
    rows: Int32s | None = None

    def without(self, numbers: Sequence[int]) -> Gained:
        """The same but for these, of its `n` rows."""
        return self.part(np.delete(np.arange(len(self.tokens)), numbers)) if numbers else self

    def part(self, numbers: NDArray[np.intp]) -> Gained:
        """The same of these of its `n` rows."""
        rows = numbers.astype(np.int32) if self.rows is None else self.rows[numbers]
        logprobs = None if self.logprobs is None else tuple([self.logprobs[number] for number in numbers.tolist()])
        return Gained(self.roster, self.tokens[numbers], self.positions[numbers], logprobs, rows)

    def of_rows(self, column: Sequence[Value]) -> Sequence[Value]:
        """What a column of the roster, or one beside it, has of its rows."""
        return column if self.rows is None else [column[row] for row in self.rows.tolist()]

    def updates(self) -> list[SequenceUpdate]:
        """The same one by one."""
        roster = self.roster
        return SequenceUpdate.of_tokens(
            self.of_rows(roster.request_ids),
            self.of_rows(roster.indices),
            self.tokens.tolist(),
            (None,) * len(self.tokens) if self.logprobs is None else self.logprobs,
            self.of_rows(roster.admissions),
            self.positions.tolist(),
        )


Part = Gained | Sequence[SequenceUpdate]
"""Of the news of steps: what many gained, or what is told one by one."""


class StepUpdates(Sequence[SequenceUpdate]):
    """The news of steps as a sequence of updates, which are made when they are asked for; those of one sequence are in order.

    Who can do with columns takes the `parts`.
    """

    __slots__ = ("parts",)

    def __init__(self, parts: Iterable[Part] = ()) -> None:
        self.parts: tuple[Part, ...] = tuple(part for part in parts if _size(part))

    @classmethod
    def joined(cls, news: Iterable[Sequence[SequenceUpdate]]) -> StepUpdates:
        """All of it, in this order."""
        return cls(chain.from_iterable(map(parts_of, news)))

    def __iter__(self) -> Iterator[SequenceUpdate]:
        for part in self.parts:
            yield from part.updates() if isinstance(part, Gained) else part

    def __len__(self) -> int:
        return sum(map(_size, self.parts))

    @overload
    def __getitem__(self, place: int) -> SequenceUpdate: ...
    @overload
    def __getitem__(self, place: slice) -> list[SequenceUpdate]: ...
    def __getitem__(self, place: int | slice) -> SequenceUpdate | list[SequenceUpdate]:
        return [*self][place]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and [*self] == [*other]

    def __repr__(self) -> str:
        return repr((*self,))

    __hash__ = None  # type: ignore[assignment]  # lists are not either

    def __reduce__(self) -> tuple[Any, ...]:
        """By field: 256 tokens take 20 microseconds, and one by one 360 (`benchmarks/messages.py`)."""
        return _unpickled, tuple(part if isinstance(part, Gained) else by_field(part) for part in self.parts)


def _size(part: Part) -> int:
    return len(part.tokens if isinstance(part, Gained) else part)


def _unpickled(*parts: Gained | list[Sequence[Any]]) -> StepUpdates:
    return StepUpdates(part if isinstance(part, Gained) else from_fields(part) for part in parts)


def parts_of(updates: Sequence[SequenceUpdate]) -> tuple[Part, ...]:
    """News by parts."""
    return updates.parts if isinstance(updates, StepUpdates) else (updates,)
