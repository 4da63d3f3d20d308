"""Which engine runs which request, and what was delivered of each."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol

import numpy as np

from jaxengine.contract.messages import Abort, Add, Cause, Done, Failed, Lost, Pause, Refused, Reply
from jaxengine.contract.request import Request
from jaxengine.contract.step_updates import Gained, StepUpdates, parts_of
from jaxengine.contract.updates import SequenceUpdate
from jaxengine.errors import EngineDeadError, JaxEngineError, OverloadedError, PoisonError, RequestError
from jaxengine.front.book import Book, Entry, MissingTokensError
from jaxengine.front.suspects import Suspects
from jaxengine.front.ward import Asked, State, Ward

logger = logging.getLogger("jaxengine")

Chooser = Callable[[Request, Mapping[int, int]], int]
"""Which engine gets a request, of those in the mapping, which has the tokens that each works on."""


def least_loaded(request: Request, loads: Mapping[int, int]) -> int:
    """The engine that works on the fewest tokens."""
    return min(loads, key=lambda engine: (loads[engine], engine))


class Tell(Protocol):
    """Tells the client what has come of its requests, and how the engine of a ward (the first one) stands."""

    def __call__(
        self,
        *,
        replies: Sequence[Reply] = (),
        updates: Sequence[SequenceUpdate] = (),
        failed: Sequence[Failed] = (),
        lost: Sequence[Lost] = (),
        ward: Ward | None = None,
    ) -> None: ...


@dataclass(slots=True, eq=False)
class _Submission:
    """Requests that came together, all or none. `open` were not accepted yet; until none is, what comes of others is `held`."""

    number: int
    entries: list[Entry]
    open: set[str]
    held: list[SequenceUpdate] = field(default_factory=list)


class Dispatcher:
    """Gives requests to engines, takes them back from those that died, and gives them to others.

    Args:
        wards: the engines.
        numbers: for messages to them.
        tell: is given what the client has to know.
        choose: picks an engine for a request.
        clock: seconds.
        resume: whether requests outlive their engines.
    """

    def __init__(
        self,
        wards: Sequence[Ward],
        numbers: count[int],
        tell: Tell,
        *,
        choose: Chooser,
        clock: Callable[[], float],
        resume: bool,
    ) -> None:
        self._wards = wards
        self._numbers = numbers
        self._tell = tell
        self._choose = choose
        self._clock = clock
        self._resume = resume
        self._book = Book()
        self._suspects = Suspects()
        self._unplaced: dict[str, Entry] = {}
        self._submissions: dict[str, _Submission] = {}

    @property
    def num_waiting(self) -> int:
        """Requests that were accepted and that no engine has."""
        return len(self._unplaced.keys() - self._submissions.keys())

    def add(self, add: Add) -> None:
        """Take in requests, all or none; `Done` or `Refused` follows when engines have answered."""
        for request in add.requests:
            if self._book.find(request.request_id) is not None:
                problem = f"request id {request.request_id!r} is in use by a request that has not ended; choose another"
                self._tell(replies=[Refused(add.number, RequestError(problem, param="request_id"))])
                return
        entries = [self._book.open(request) for request in add.requests]
        submission = _Submission(add.number, entries, {entry.request_id for entry in entries})
        for entry in entries:
            self._submissions[entry.request_id] = submission
            self._unplaced[entry.request_id] = entry
        self.place()

    def abort(self, message: Abort) -> None:
        """End requests and sequences."""
        for request_id in message.request_ids:
            if (entry := self._book.find(request_id)) is not None:
                self._end(entry)
        for request_id, index in message.stopped:
            if (entry := self._book.find(request_id)) is not None:
                entry.stop(index)
                for ward in self._wards:
                    ward.stop(entry, index)
                if entry.ended:
                    self._close(entry)
        self.place()

    def pause(self, message: Pause) -> None:
        """Let requests rest, or go on."""
        for request_id in message.request_ids:
            if (entry := self._book.find(request_id)) is not None:
                entry.paused = message.paused
                for ward in self._wards:
                    ward.pause(entry)
        self.place()

    def take(self, ward: Ward, updates: Sequence[SequenceUpdate]) -> Sequence[SequenceUpdate]:
        """Note what an engine has told; the part of it that the client is to be told now."""
        told: list[Sequence[SequenceUpdate]] = []
        for part in parts_of(updates):
            if isinstance(part, Gained):
                gained, part = self._take_gained(ward, part)
                told.append(StepUpdates([gained]))
            told.append(self._take_each(ward, part))
        return StepUpdates.joined(told)

    def _take_gained(self, ward: Ward, gained: Gained) -> tuple[Gained, list[SequenceUpdate]]:
        """Note the tokens of a step; what of it is told as it came, and the updates that have to be looked at."""
        if self._suspects or self._submissions or ward.unanswered:
            return gained.part(np.zeros(0, np.intp)), gained.updates()
        roster, entries, odd = gained.roster, ward.entries, list[int]()
        columns = (gained.of_rows(column) for column in (roster.request_ids, roster.indices, roster.admissions))
        tokens, positions = gained.tokens.tolist(), gained.positions.tolist()
        rows = zip(*columns, tokens, positions, strict=True)
        for number, (request_id, index, admission, token, position) in enumerate(rows):
            entry = entries.get(request_id)
            if entry is None or not entry.gain(index, token, position, admission):
                odd.append(number)
        return gained.without(odd), gained.part(np.array(odd, np.intp)).updates() if odd else []

    def _take_each(self, ward: Ward, updates: Sequence[SequenceUpdate]) -> Sequence[SequenceUpdate]:
        told: list[SequenceUpdate] = []
        all_are_told = True
        for update in updates:
            entry = ward.entries.get(update.request_id)
            fresh = None if entry is None else self._fresh(ward, entry, update)
            submission = self._submissions.get(update.request_id)
            all_are_told = all_are_told and fresh is update and submission is None
            if entry is None or fresh is None:
                continue
            (told if submission is None else submission.held).append(fresh)
            if fresh.finish_reason is not None and entry.ended:
                self._close(entry)
            elif self._suspects and ward.condemned is None:  # a step that hung and ended after all was its death
                self._clear(ward, entry)
        return updates if all_are_told else told

    def lose(self, ward: Ward, state: State, cause: Cause) -> list[Asked]:
        """An engine is dead, so its requests wait for another, but for the one that it certainly died of.

        Returns:
            What else it had been asked and has not answered.
        """
        running = ward.running
        on_trial = ward.trial if ward.tries or ward.trial in running else None
        if not running and on_trial is None:  # its last words are lost, or it died while it prepared one of these
            running = [entry for entry in ward.entries.values() if not entry.paused]
        culprit = self._suspects.note_death(running, cause, on_trial=on_trial)
        lost = list(ward.entries.values())
        asked = ward.end(state)
        for entry in lost:
            if entry is culprit:
                ward.num_poisoned += 1
                logger.error("request %s ends: the engine died each time it ran it", entry.request_id)
                self._fail(entry, PoisonError("the engine died each time it ran this request, the last time alone"))
            elif not (self._resume and entry.request.resume):
                self._fail(entry, EngineDeadError(f"the engine that ran this request died ({cause}); send it again"))
            elif self._book.find(entry.request_id) is entry:
                ward.num_resumed += 1
                self._unplaced[entry.request_id] = entry
        self._unplaced = {entry.request_id: entry for entry in self._book if entry.request_id in self._unplaced}
        return asked

    def place(self) -> None:
        """Give requests that wait to engines that are ready; suspects alone, one after the other, unless they are paused.

        Where all engines sleep those that were accepted wait until one is awake, and new ones are refused by one.
        """
        if not self._unplaced:
            return
        waiting = self._suspects.to_try(self._unplaced.values())
        if (suspect := next((entry for entry in waiting if not entry.paused), None)) is not None:
            self._try_one(suspect)
        wards = {ward.index: ward for ward in self._wards if ward.takes_requests and not ward.tries}
        if not wards:
            return
        awake = {index: ward for index, ward in wards.items() if not ward.asleep}
        loads = {index: ward.load for index, ward in (awake or wards).items()}
        together: dict[tuple[int, object], list[Entry]] = {}
        for entry in [entry for entry in self._unplaced.values() if entry not in waiting]:
            if not awake and entry.request_id not in self._submissions:
                continue
            index = self._choose(entry.request, loads)
            loads[index] += entry.load
            # One that goes on is handed in for itself, so that a refusal ends no other.
            together.setdefault((index, self._submissions.get(entry.request_id, entry)), []).append(entry)
        for (index, _), entries in together.items():
            self._send(wards[index], entries)

    def empty(self, ward: Ward) -> None:
        """Take back what an engine has, for others to go on with."""
        for entry in list(ward.entries.values()):
            self._take_back(ward, entry)
        self.place()

    def _fresh(self, ward: Ward, entry: Entry, update: SequenceUpdate) -> SequenceUpdate | None:
        if update.request_id in ward.unanswered:
            return None  # the engine was given the request before, and is given it again
        try:
            return entry.take(update)
        except MissingTokensError as error:
            logger.error("%s", error)
            self._fail(entry, error)
            return None

    def _try_one(self, suspect: Entry) -> None:
        """Give a suspect an engine of its own: one that runs nothing, or where none such will come, one that is emptied."""
        if any(ward.tries for ward in self._wards):
            return
        ready = [ward for ward in self._wards if ward.takes_requests and not ward.asleep]
        chosen = next((ward for ward in ready if not ward.entries), None)
        if chosen is None:
            coming = (State.STARTING, State.WAITING, State.DRAINING)
            if any(ward.state in coming or ward.condemned is not None for ward in self._wards) or not ready:
                return  # one that starts will be empty
            chosen = min(ready, key=lambda ward: ward.load)
            for entry in list(chosen.entries.values()):
                self._take_back(chosen, entry)
        logger.warning("request %s is tried alone: engines died while it ran", suspect.request_id)
        chosen.trial = suspect
        self._send(chosen, [suspect])

    def _clear(self, ward: Ward, entry: Entry) -> None:
        """An entry has got on: if that clears it on its trial, the next one is tried, or all go on."""
        if self._suspects.clears(entry) and ward.trial is entry:
            ward.trial = None
            if not all(other.paused for other in self._suspects.to_try(self._unplaced.values())):
                self._take_back(ward, entry)
            self.place()

    def _take_back(self, ward: Ward, entry: Entry) -> None:
        """Let a request wait that an engine runs; it goes on from there later."""
        ward.abort(entry, elsewhere=True)
        self._unplaced[entry.request_id] = entry

    def _send(self, ward: Ward, entries: list[Entry]) -> None:
        for entry in entries:
            del self._unplaced[entry.request_id]
        life, number = ward.lives, next(self._numbers)

        def answer(reply: Reply) -> None:
            for entry in entries:
                if ward.lives == life and ward.accept(entry, number):
                    self._accepted(ward, entry, reply)

        ward.add(number, entries, answer, self._clock())

    def _accepted(self, ward: Ward, entry: Entry, reply: Reply) -> None:
        """An engine has accepted a request, or not. Once all of a submission are, say so, and what has come of them since."""
        submission = self._submissions.get(entry.request_id)
        if isinstance(reply, Refused):
            if submission is None and isinstance(reply.error, OverloadedError):
                self._take_back(ward, entry)  # it fell asleep, and another had accepted the request
            else:
                self._fail(entry, reply.error)
        elif submission is not None:
            submission.open.discard(entry.request_id)
            self._tell_if_whole(submission)

    def _tell_if_whole(self, submission: _Submission) -> None:
        if not submission.open:
            self._forget(submission)
            self._tell(replies=[Done(submission.number)], updates=submission.held)

    def _forget(self, submission: _Submission) -> None:
        for entry in submission.entries:
            if self._submissions.get(entry.request_id) is submission:
                del self._submissions[entry.request_id]

    def _fail(self, entry: Entry, error: JaxEngineError) -> None:
        """A request ends with an error of its own; with it those that came with it, where not all of these were accepted."""
        submission = self._submissions.get(entry.request_id)
        if submission is not None:
            self._forget(submission)
            for each in submission.entries:
                self._end(each)
            self._tell(replies=[Refused(submission.number, error)])
        elif self._book.find(entry.request_id) is entry:
            lost = Lost("error", entry.num_running)
            self._end(entry)
            self._tell(failed=[Failed(entry.request_id, error)], lost=[lost])

    def _end(self, entry: Entry) -> None:
        """A request is over; an engine that still runs it is told."""
        for ward in self._wards:
            ward.abort(entry)
        self._close(entry)

    def _close(self, entry: Entry) -> None:
        if not self._book.close(entry):
            return
        self._suspects.forget(entry)
        self._unplaced.pop(entry.request_id, None)
        was_tried = any(ward.trial is entry for ward in self._wards)
        for ward in self._wards:
            ward.drop(entry)
        if (submission := self._submissions.get(entry.request_id)) is not None:
            submission.open.discard(entry.request_id)
            self._tell_if_whole(submission)
        if was_tried:
            self.place()
