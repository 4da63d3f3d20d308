"""From the news of steps to statistics, for as long as somebody listens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

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
from jaxengine.contract.updates import Admission, SequenceUpdate

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
            self._requests[request.request_id] = _RequestTimes(request, now)

    def take(self, updates: Sequence[SequenceUpdate], now: float) -> None:
        """Note what one step yielded; `now` is when it reached the host."""
        if not self._listeners:
            return
        requests, lasts, num_generated = self._requests, list[float](), 0
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
                sequence = request.sequences[number] = _SequenceTimes(request, number, admission, now)
                self._first_tokens.append(sequence.first_token_stats())
                sequence.num_generated = count
                count -= 1
            else:
                sequence.num_generated += count
                sequence.admission = admission
            if count == 1:
                lasts.append(sequence.last_token)
                sequence.last_token = now
            elif count:
                self._gaps[(now - sequence.last_token) / count] += count
                sequence.last_token = now
            if num_drafts:
                self._drafts[num_drafts, num_right] += 1
            if reason is not None:
                self._ended.append((sequence, reason))
        self._num_generated += num_generated
        for last, times in Counter(lasts).items():  # those that decode together share it
            self._gaps[now - last] += times

    def stop(self, request_id: str, index: int) -> None:
        """A stop string ended this sequence, unless its tokens had ended it before that was found."""
        request = self._requests.get(request_id)
        sequence = None if request is None else request.sequences.get(index)
        if sequence is not None and not sequence.ended:
            self._finish(sequence, "stop", sequence.last_token)

    def forget(self, request_id: str) -> None:
        """Follow a request no more: it goes on elsewhere."""
        self._requests.pop(request_id, None)

    def lose(self, request_id: str, finish_reason: str) -> None:
        """A request ended before its time."""
        request = self._requests.pop(request_id, None)
        if request is None:
            return
        for listener in self._listeners:
            listener.on_lost(finish_reason, request.num_unfinished)

    def _lose_sequence(self, request: _RequestTimes, finish_reason: str) -> None:
        """A sequence ended without a token: there is nothing to tell of it but why."""
        request.num_unfinished -= 1
        if not request.num_unfinished:
            del self._requests[request.request.request_id]
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
        if not request.num_unfinished:
            del self._requests[request.request.request_id]
            whole = request.finished_stats()
        finished = sequence.finished_stats(reason, now)
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


class _RequestTimes:
    """A request and those of its sequences that have yielded something."""

    __slots__ = ("num_unfinished", "request", "sequences")

    def __init__(self, request: Request, now: float) -> None:
        self.request = request
        self.num_unfinished = request.sampling.n - sum(each.ended for each in request.history)
        self.sequences: dict[int, _SequenceTimes] = {}
        for index, history in enumerate(request.history):
            if history.token_ids:
                sequence = self.sequences[index] = _SequenceTimes(self, index, history.admission, now)
                sequence.first_token = sequence.scheduled  # nobody here knows when it was: all is decoding
                sequence.num_generated = len(history.token_ids)
                sequence.ended = history.ended

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
        "last_token",
        "num_generated",
        "request",
        "scheduled",
    )

    def __init__(self, request: _RequestTimes, index: int, admission: Admission, now: float) -> None:
        arrival = request.request.arrival
        self.request = request
        self.index = index
        self.admission = admission
        scheduled = admission.first_scheduled_time
        self.scheduled = arrival if scheduled is None else scheduled
        self.first_token = self.last_token = now
        self.num_generated = 0
        self.ended = False

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
