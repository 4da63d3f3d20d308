"""From the news of steps to statistics, for as long as somebody listens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from buckets import StepShape
from jaxengine.batch import Batch
from jaxengine.metrics import FinishedRequest, FinishedSequence, FirstToken, StatsListener, StepStats
from jaxengine.request import Request
from jaxengine.scheduler.updates import SequenceUpdate


class Recorder:
    """Follows every request from `add` to its end and tells listeners about each step.

    A step is `take`, then `stop` for what its text ended, then `end_step`. Without listeners all of it returns at once; requests
    that were added before the first listener came are not followed.
    """

    def __init__(self) -> None:
        self._listeners: list[StatsListener] = []
        self._requests: dict[str, _Request] = {}
        self._first_tokens: list[FirstToken] = []
        self._gaps: Counter[float] = Counter()
        self._ended: dict[_Sequence, str] = {}
        self._last_ready: float | None = None

    def listen(self, listener: StatsListener) -> None:
        """Tell `listener` about everything from now on."""
        self._listeners.append(listener)

    def add(self, request: Request) -> None:
        """Begin to follow a request."""
        if self._listeners:
            self._requests[request.request_id] = _Request(request)

    def take(self, updates: Sequence[SequenceUpdate], now: float) -> None:
        """Note the tokens of one step; `now` is when they reached the host."""
        if not self._listeners:
            return
        requests, gaps = self._requests, self._gaps
        for update in updates:
            request = requests.get(update.request_id)
            if request is None or not (update.token_ids or update.finish_reason):
                continue
            sequence = request.sequences.get(update.index)
            if not update.token_ids:
                if sequence is None:
                    self._lose_sequence(request, update.finish_reason or "")
                    continue
            elif sequence is None:
                sequence = request.sequences[update.index] = _Sequence(request, update, now)
                self._first_tokens.append(sequence.first_token_stats())
            else:
                gaps[now - sequence.last_token] += 1
                sequence.last_token = now
                sequence.num_generated += 1
                sequence.num_preemptions = update.num_preemptions
            if update.finish_reason is not None:
                self._ended[sequence] = update.finish_reason

    def stop(self, request_id: str, index: int) -> None:
        """A stop string ended this sequence, whatever its tokens said."""
        if request_id in self._requests:
            self._ended[self._requests[request_id].sequences[index]] = "stop"

    def lose(self, request_id: str, finish_reason: str) -> None:
        """A request ended before its time."""
        request = self._requests.pop(request_id, None)
        if request is None:
            return
        for sequence in request.sequences.values():
            self._ended.pop(sequence, None)
        for listener in self._listeners:
            listener.on_lost(finish_reason, request.num_unfinished)

    def _lose_sequence(self, request: _Request, finish_reason: str) -> None:
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
        finished = [self._finish(sequence, reason, ready) for sequence, reason in self._ended.items()]
        stats = StepStats(
            shape=StepShape(batch.prefill_bucket, batch.decode_bucket),
            num_tokens=batch.num_tokens,
            num_padded_tokens=batch.num_padded_tokens,
            step_s=ready - launched,
            host_gap_s=None if self._last_ready is None else launched - self._last_ready,
            first_tokens=tuple(self._first_tokens),
            gaps=dict(self._gaps),
            finished_sequences=tuple(finished),
            finished_requests=tuple(self._whole_requests()),
        )
        self._last_ready = ready if more else None
        self._first_tokens.clear()
        self._gaps.clear()
        self._ended.clear()
        for listener in self._listeners:
            listener.on_step(stats)

    def _finish(self, sequence: _Sequence, reason: str, now: float) -> FinishedSequence:
        sequence.request.num_unfinished -= 1
        return sequence.finished_stats(reason, now)

    def _whole_requests(self) -> list[FinishedRequest]:
        whole = {sequence.request.request.request_id for sequence in self._ended if not sequence.request.num_unfinished}
        return [self._requests.pop(request_id).finished_stats() for request_id in whole]


class _Request:
    """A request and those of its sequences that have a token."""

    __slots__ = ("num_unfinished", "request", "sequences")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.num_unfinished = request.sampling.n
        self.sequences: dict[int, _Sequence] = {}

    def finished_stats(self) -> FinishedRequest:
        longest = max(sequence.num_generated for sequence in self.sequences.values())
        return FinishedRequest(self.request.sampling.n, longest)


class _Sequence:
    """A sequence that has at least one token."""

    __slots__ = ("first_token", "last_token", "num_cached", "num_generated", "num_preemptions", "request", "scheduled")

    def __init__(self, request: _Request, update: SequenceUpdate, now: float) -> None:
        arrival = request.request.arrival
        self.request = request
        self.num_cached = update.num_cached_tokens
        self.num_preemptions = update.num_preemptions
        self.scheduled = arrival if update.first_scheduled_time is None else update.first_scheduled_time
        self.first_token = self.last_token = now
        self.num_generated = 1

    def first_token_stats(self) -> FirstToken:
        request = self.request.request
        return FirstToken(len(request.prompt_token_ids), self.num_cached, self.first_token - request.arrival)

    def finished_stats(self, reason: str, now: float) -> FinishedSequence:
        request = self.request.request
        return FinishedSequence(
            finish_reason=reason,
            num_prompt_tokens=len(request.prompt_token_ids),
            num_cached_tokens=self.num_cached,
            num_generated_tokens=self.num_generated,
            max_tokens=request.max_tokens,
            num_preemptions=self.num_preemptions,
            queue_s=self.scheduled - request.arrival,
            prefill_s=self.first_token - self.scheduled,
            decode_s=self.last_token - self.first_token,
            total_s=now - request.arrival,
        )
