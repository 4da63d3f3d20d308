"""From the news of steps to statistics, for as long as somebody listens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from jaxengine.contract.batch import Batch
from jaxengine.contract.metrics import (
    DraftStats,
    FinishedRequest,
    FinishedSequence,
    FirstToken,
    StatsListener,
    StepStats,
)
from jaxengine.contract.request import Request
from jaxengine.contract.step_updates import Gained, Roster, parts_of
from jaxengine.contract.updates import Admission, SequenceUpdate

UNKNOWN = -1
NO_OUTPUT = frozenset({"abort", "error"})
"""Why a sequence may end that never yielded anything."""


class Recorder:
    """Follows every request from `add` to its end and tells listeners about each step.

    A step is `take`, then `end_step`. A sequence that is ended for its text, with `stop`, has by then yielded the tokens that
    came while its text was read, and they count: the device has computed them. Without listeners all of it returns at once;
    requests that were added before the first listener came are not followed.
    """

    def __init__(self) -> None:
        self._listeners: list[StatsListener] = []
        self._requests: dict[str, _RequestTimes] = {}
        self._columns = _Columns()
        self._roster: tuple[Roster, NDArray[np.intp]] = Roster([], [], []), np.zeros(0, np.intp)
        self._first_tokens: list[FirstToken] = []
        self._gaps: Counter[float] = Counter()
        self._num_generated = 0
        self._drafts: Counter[tuple[int, int]] = Counter()
        self._ended: list[tuple[_SequenceTimes, str]] = []
        self._last_ready = 0.0
        self._had_more = False

    def listen(self, listener: StatsListener) -> None:
        """Tell `listener` about everything from now on."""
        self._listeners.append(listener)

    def add(self, request: Request, now: float) -> None:
        """Begin to follow a request. What it had yielded on another engine is not told again."""
        if self._listeners:
            self._requests[request.request_id] = _RequestTimes(request, now, self._columns)

    def take(self, updates: Sequence[SequenceUpdate], now: float) -> None:
        """Note what one step yielded, of a sequence in one update; `now` is when it reached the host."""
        if not self._listeners:
            return
        for part in parts_of(updates):
            if isinstance(part, Gained):
                self._take_gained(part, now)
            else:
                self._take_each(part, now)

    def _take_gained(self, gained: Gained, now: float) -> None:
        """A token each, for all together."""
        places = self._places_of(gained.roster)
        if gained.rows is not None:
            places = places[gained.rows]
        if places.min(initial=0) == UNKNOWN:
            self._take_each(gained.updates(), now)
        else:
            self._num_generated += len(places)
            self._take_tokens(places, now)

    def _places_of(self, roster: Roster) -> NDArray[np.intp]:
        """The place of each sequence of a roster among the columns, or `UNKNOWN` where it has none.

        Those that end meanwhile are in the roster's news no more, so what has their places then does not matter.
        """
        known, places = self._roster
        if known is roster:
            return places
        found = []
        for request_id, index, admission in zip(roster.request_ids, roster.indices, roster.admissions, strict=True):
            request = self._requests.get(request_id)
            sequence = None if request is None else request.sequences.get(index)
            if sequence is not None:
                sequence.admission = admission
            found.append(UNKNOWN if sequence is None else sequence.place)
        self._roster = roster, np.array(found, np.intp)
        return self._roster[1]

    def _take_tokens(self, places: NDArray[np.intp], now: float) -> None:
        """Sequences that had some gained a token each. Those that decode together share the time since the one before."""
        columns = self._columns
        lasts = columns.last_token[places]
        columns.last_token[places] = now
        columns.num_generated[places] += 1
        if (lasts == lasts[0]).all():
            self._gaps[now - float(lasts[0])] += len(lasts)
        else:
            for last, times in Counter(lasts.tolist()).items():
                self._gaps[now - last] += times

    def _take_each(self, updates: Sequence[SequenceUpdate], now: float) -> None:
        requests, columns, places, num_generated = self._requests, self._columns, list[int](), 0
        for update in updates:
            request_id, number, token_ids, _, admission, _, reason, _, num_drafts, num_right, _, _ = update
            count = len(token_ids)
            request = requests.get(request_id)
            if request is None or not (count or reason):
                continue
            num_generated += count
            sequence = request.sequences.get(number)
            if sequence is None:
                if reason in NO_OUTPUT and not count:
                    self._lose_sequence(request, reason)
                    continue
                sequence = request.begin(number, admission, now)
                self._first_tokens.append(sequence.first_token_stats())
                columns.num_generated[sequence.place] = min(1, count)
                count = max(0, count - 1)
            else:
                sequence.admission = admission
            if count == 1:
                places.append(sequence.place)
            elif count:
                self._gaps[(now - sequence.last_token) / count] += count
                columns.last_token[sequence.place] = now
                columns.num_generated[sequence.place] += count
            if num_drafts:
                self._drafts[num_drafts, num_right] += 1
            if reason is not None:
                self._ended.append((sequence, reason))
        self._num_generated += num_generated
        if places:
            self._take_tokens(np.array(places), now)

    def stop(self, request_id: str, index: int) -> None:
        """A stop string ended this sequence, unless its tokens had ended it before that was found."""
        request = self._requests.get(request_id)
        sequence = None if request is None else request.sequences.get(index)
        if sequence is not None and not sequence.ended:
            self._finish(sequence, "stop", sequence.last_token)

    def forget(self, request_id: str) -> _RequestTimes | None:
        """Follow a request no more: it goes on elsewhere. What was known of it."""
        request = self._requests.pop(request_id, None)
        if request is not None:
            self._columns.give_back(sequence.place for sequence in request.sequences.values())
        return request

    def lose(self, request_id: str, finish_reason: str) -> None:
        """A request ended before its time."""
        request = self.forget(request_id)
        if request is None:
            return
        for listener in self._listeners:
            listener.on_lost(finish_reason, request.num_unfinished)

    def _lose_sequence(self, request: _RequestTimes, finish_reason: str) -> None:
        """A sequence ended without a token: there is nothing to tell of it but why."""
        request.num_unfinished -= 1
        if not request.num_unfinished:
            self.forget(request.request.request_id)
        for listener in self._listeners:
            listener.on_lost(finish_reason, 1)

    def end_step(self, batch: Batch, *, launched: float, ready: float, more: bool) -> None:
        """Tell the listeners about the step; `more` says that work is left, so that the host's time until the next counts."""
        if not self._listeners:
            return
        stats = StepStats(
            shape=batch.bucket,
            num_tokens=batch.num_tokens,
            num_padded_tokens=batch.num_padded_tokens,
            step_s=ready - max(launched, self._last_ready),
            host_gap_s=max(0.0, launched - self._last_ready) if self._had_more else None,
            num_generated_tokens=self._num_generated,
            first_tokens=tuple(self._first_tokens),
            gaps=dict(self._gaps),
            drafts=_draft_stats(self._drafts) if self._drafts else NO_DRAFTS,
        )
        self._last_ready, self._had_more = ready, more
        self._num_generated = 0
        self._first_tokens.clear()
        self._gaps.clear()
        self._drafts.clear()
        for listener in self._listeners:
            listener.on_step(stats)
        for sequence, reason in self._ended:
            self._finish(sequence, reason, ready)
        self._ended.clear()

    def _finish(self, sequence: _SequenceTimes, reason: str, now: float) -> None:
        """Tell the listeners that a sequence ended by itself."""
        sequence.ended = True
        request = sequence.request
        request.num_unfinished -= 1
        whole = None
        finished = sequence.finished_stats(reason, now)
        if not request.num_unfinished:
            whole = request.finished_stats()
            self.forget(request.request.request_id)
        for listener in self._listeners:
            listener.on_finished(finished, whole)


def _draft_stats(drafts: Counter[tuple[int, int]]) -> DraftStats:
    """Sums over drafts, each so many tokens of which so many were right."""
    longest = max(length for length, _ in drafts)
    return DraftStats(
        num_drafts=drafts.total(),
        num_draft_tokens=sum(length * times for (length, _), times in drafts.items()),
        num_accepted_tokens=sum(accepted * times for (_, accepted), times in drafts.items()),
        accepted_at=tuple(
            sum(times for (_, accepted), times in drafts.items() if accepted > place) for place in range(longest)
        ),
    )


NO_DRAFTS = DraftStats()


class _Columns:
    """What changes with every token of a sequence, by its place: when the last one came, and how many there were."""

    def __init__(self) -> None:
        self.last_token = np.zeros(0)
        self.num_generated = np.zeros(0, np.int64)
        self._free: list[int] = []

    def take(self, now: float) -> int:
        """A place for a sequence whose first token comes now."""
        if not self._free:
            size = len(self.last_token)
            more = max(64, size)
            self.last_token = np.append(self.last_token, np.zeros(more))
            self.num_generated = np.append(self.num_generated, np.zeros(more, np.int64))
            self._free += range(size + more - 1, size - 1, -1)
        place = self._free.pop()
        self.last_token[place], self.num_generated[place] = now, 0
        return place

    def give_back(self, places: Iterable[int]) -> None:
        """Let others have these places."""
        self._free += places


class _RequestTimes:
    """A request and those of its sequences that have yielded something."""

    __slots__ = ("columns", "num_unfinished", "request", "sequences")

    def __init__(self, request: Request, now: float, columns: _Columns) -> None:
        self.request = request
        self.columns = columns
        self.num_unfinished = request.sampling.n - sum(each.ended for each in request.history)
        self.sequences: dict[int, _SequenceTimes] = {}
        for index, history in enumerate(request.history):
            if history.token_ids:
                sequence = self.begin(index, history.admission, now)
                sequence.first_token = sequence.scheduled  # nobody here knows when it was: all is decoding
                columns.num_generated[sequence.place] = len(history.token_ids)
                sequence.ended = history.ended

    def begin(self, index: int, admission: Admission, now: float) -> _SequenceTimes:
        """A sequence yields its first token."""
        sequence = self.sequences[index] = _SequenceTimes(self, index, admission, now, self.columns.take(now))
        return sequence

    def finished_stats(self) -> FinishedRequest:
        generated = [sequence.num_generated for sequence in self.sequences.values()]
        return FinishedRequest(
            n=self.request.sampling.n,
            max_generated_tokens=max(generated),
            arrival=self.request.arrival,
            num_prompt_tokens=len(self.request.prompt_token_ids),
            num_cached_tokens=next(iter(self.sequences.values())).admission.num_cached_tokens,
            num_generated_tokens=sum(generated),
        )


class _SequenceTimes:
    """A sequence whose prompt is computed."""

    __slots__ = (
        "admission",
        "ended",
        "first_token",
        "index",
        "place",
        "request",
        "scheduled",
    )

    def __init__(self, request: _RequestTimes, index: int, admission: Admission, now: float, place: int) -> None:
        arrival = request.request.arrival
        self.request = request
        self.index = index
        self.admission = admission
        scheduled = admission.first_scheduled_time
        self.scheduled = arrival if scheduled is None else scheduled
        self.first_token = now
        self.place = place
        self.ended = False

    @property
    def last_token(self) -> float:
        return float(self.request.columns.last_token[self.place])

    @property
    def num_generated(self) -> int:
        return int(self.request.columns.num_generated[self.place])

    def first_token_stats(self) -> FirstToken:
        request = self.request.request
        return FirstToken(
            len(request.prompt_token_ids),
            self.admission.num_cached_tokens,
            self.first_token - request.arrival,
            self.admission.cached_from,
        )

    def finished_stats(self, reason: str, now: float) -> FinishedSequence:
        request = self.request.request
        return FinishedSequence(
            request_id=request.request_id,
            index=self.index,
            finish_reason=reason,
            num_prompt_tokens=len(request.prompt_token_ids),
            num_cached_tokens=self.admission.num_cached_tokens,
            num_generated_tokens=self.num_generated,
            max_tokens=request.max_tokens,
            num_preemptions=self.admission.num_preemptions,
            queue_s=self.scheduled - request.arrival,
            prefill_s=self.first_token - self.scheduled,
            decode_s=self.last_token - self.first_token,
            total_s=now - request.arrival,
            waited_for=self.admission.waited_for,
        )
