"""Scheduler updates to outputs: text, stop strings, log probabilities, the request's n sequences; or what was pooled."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence

from jaxengine.contract.batch import RowLogprobs
from jaxengine.contract.lora_request import LoRARequest
from jaxengine.contract.messages import Abort
from jaxengine.contract.outputs import (
    CompletionOutput,
    Output,
    PooledOutput,
    PositionLogprobs,
    RequestMetrics,
    RequestOutput,
    VersionedTokens,
)
from jaxengine.contract.request import Request
from jaxengine.contract.sampling_params import RequestOutputKind
from jaxengine.contract.updates import Admission, SequenceUpdate
from jaxengine.front.logprobs import TEXT_CONTEXT, position_logprobs
from jaxengine.front.pooled import aborted_output, pooled_output
from jaxengine.front.prompt_positions import PromptPositions
from jaxengine.text.detokenizer import Detokenizer
from jaxengine.text.stop import StopStrings
from jaxengine.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

UNBUILDABLE = "the output could not be built"
"""The stop reason of a request that ends with `abort` for that."""


class Postprocessor:
    """Makes outputs of updates: it begins a `Progress` for each request.

    Args:
        tokenizer: None when the engine works on ids only; every text is then empty.
        output_kind: of every request, whatever its sampling parameters say; None is what they say.
        lazy: log probabilities of prompts are made when they are looked at, and no list of them is.
        clock: the clock that `Request.arrival` was read from.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        *,
        output_kind: RequestOutputKind | None = None,
        lazy: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tokenizer = tokenizer
        self._output_kind = output_kind
        self._lazy = lazy
        self._clock = clock

    def begin(self, request: Request) -> Progress:
        """What becomes of a request, from before its first update."""
        kind = self._output_kind or request.sampling.output_kind
        if request.pooling is not None:
            return Progress(_Pooling(request), self._clock)
        return Progress(_Generation(request, self._tokenizer, kind, lazy=self._lazy), self._clock)


class Progress:
    """What has been generated for one request, in the caller's terms. `finished` once its last output was returned."""

    def __init__(self, builder: _Generation | _Pooling, clock: Callable[[], float]) -> None:
        self.request = builder.request
        self.finished = False
        self._builder = builder
        self._clock = clock

    def process(self, updates: Sequence[SequenceUpdate]) -> tuple[Output | None, Abort | None]:
        """Take what came, of one step or of several, in order.

        Returns:
            The output to deliver, None where there is nothing to tell; and what the core has to be told, if anything: the
            sequences that a stop string ended, of which it does not know; or the request, which has ended with `abort` because
            its output cannot be built.
        """
        if self.finished:
            return None, None  # under way when a stop string ended the last sequence
        request = self.request
        output: Output | None
        try:
            output, stopped = self._builder.take(updates, self._clock())
        except Exception:
            logger.exception("request %s is aborted: its output cannot be built", request.request_id)
            self.finished = True
            return _aborted(request), Abort((request.request_id,))
        self.finished = output is not None and output.finished
        return output, Abort(stopped=stopped) if stopped else None


def group_by_request(updates: Iterable[SequenceUpdate]) -> dict[str, list[SequenceUpdate]]:
    """The updates of each request, in order, as `Progress.process` takes them."""
    grouped: dict[str, list[SequenceUpdate]] = {}
    for update in updates:
        grouped.setdefault(update.request_id, []).append(update)
    return grouped


def _aborted(request: Request) -> Output:
    if request.pooling is not None:
        return aborted_output(request)
    return RequestOutput(
        request_id=request.request_id,
        prompt=request.prompt,
        prompt_token_ids=request.prompt_token_ids,
        outputs=tuple(
            CompletionOutput(index=index, text="", token_ids=(), finish_reason="abort", stop_reason=UNBUILDABLE)
            for index in range(request.sampling.n)
        ),
        finished=True,
        lora_request=_adapter_of(request),
    )


def _adapter_of(request: Request) -> LoRARequest | None:
    """The adapter that a request ran with, as callers name it."""
    adapter = request.adapter
    return None if adapter is None else LoRARequest(adapter.name, adapter.number, adapter.path)


class _Pooling:
    """One request with pooling: a single update is all that comes."""

    def __init__(self, request: Request) -> None:
        self.request = request

    def take(self, updates: Sequence[SequenceUpdate], now: float) -> tuple[PooledOutput, tuple[tuple[str, int], ...]]:
        [update] = updates
        if update.finish_reason in ("abort", "error"):
            return aborted_output(self.request), ()
        return pooled_output(self.request, update), ()


class _Generation:
    """One request: its sequences, the log probabilities of its prompt, its times."""

    def __init__(self, request: Request, tokenizer: Tokenizer | None, kind: RequestOutputKind, *, lazy: bool) -> None:
        self.request = request
        self._kind = kind
        self._sequences = [_Sequence(request, index, tokenizer) for index in range(request.sampling.n)]
        self._num_running = len(self._sequences)
        self._tokenizer = tokenizer
        self._prompt = PromptPositions(request, tokenizer)
        self._positions: list[PositionLogprobs | None] | None = None if lazy else [None]
        self._num_cached_tokens = 0
        self._first_scheduled: float | None = None
        self._first_token: float | None = None
        self._prompt_logprobs_sent = False

    def take(
        self, updates: Sequence[SequenceUpdate], now: float
    ) -> tuple[RequestOutput | None, tuple[tuple[str, int], ...]]:
        """The output after these updates, and the sequences that a stop string ended."""
        stopped: tuple[tuple[str, int], ...] = ()
        for update in updates:
            sequence = self._sequences[update.index]
            if sequence.finished:
                continue  # what was under way when a stop string ended it
            self._note(update, now)
            sequence.take(update)
            if sequence.finished:
                self._num_running -= 1
                if sequence.stopped_by_text:
                    stopped = (*stopped, (update.request_id, update.index))
        return self._output(now), stopped

    def _note(self, update: SequenceUpdate, now: float) -> None:
        if update.prompt_logprobs:
            self._note_prompt_logprobs(update)
        if update.index == 0:
            self._num_cached_tokens = update.admission.num_cached_tokens
        if self._first_scheduled is None:
            self._first_scheduled = update.admission.first_scheduled_time
        if self._first_token is None and update.token_ids:
            self._first_token = now

    def _output(self, now: float) -> RequestOutput | None:
        """What the caller is told now; None when there is nothing to tell."""
        request, kind, finished = self.request, self._kind, not self._num_running
        if kind is RequestOutputKind.FINAL_ONLY and not finished:
            return None
        if kind is RequestOutputKind.DELTA:
            outputs = [sequence.delta() for sequence in self._sequences if sequence.has_news]
        elif any(sequence.has_news for sequence in self._sequences):
            outputs = [sequence.completion() for sequence in self._sequences if sequence.began]
        else:
            outputs = []
        if not outputs:
            return None
        return RequestOutput(
            request_id=request.request_id,
            prompt=request.prompt,
            prompt_token_ids=request.prompt_token_ids,
            outputs=tuple(outputs),
            finished=finished,
            prompt_logprobs=self._prompt_logprobs_for(kind),
            num_cached_tokens=self._num_cached_tokens,
            metrics=RequestMetrics(
                arrival_time=request.arrival,
                first_scheduled_time=self._first_scheduled,
                first_token_time=self._first_token,
                finished_time=now if finished else None,
                num_preemptions=sum([sequence.admission.num_preemptions for sequence in self._sequences]),
            ),
            kv_transfer_params=request.handover if finished else None,
            lora_request=_adapter_of(request),
        )

    def _note_prompt_logprobs(self, update: SequenceUpdate) -> None:
        self._prompt.extend(update.prompt_logprobs)
        if self._positions is not None:
            self._positions += self._prompt[len(self._positions) :]

    def _prompt_logprobs_for(self, kind: RequestOutputKind) -> Sequence[PositionLogprobs | None] | None:
        """Deltas carry them once, with the first output."""
        if self.request.sampling.prompt_logprobs is None:
            return None
        if kind is RequestOutputKind.DELTA and self._prompt_logprobs_sent:
            return None
        self._prompt_logprobs_sent = True
        return self._prompt if self._positions is None else list(self._positions)


class _Sequence:
    """One of the n sequences of a request.

    Tokens are made text of when there is something to tell, many at once where many came; with stop strings, one by one, because
    the token that completes one is the last.
    """

    def __init__(self, request: Request, index: int, tokenizer: Tokenizer | None) -> None:
        sampling = request.sampling
        assert isinstance(sampling.stop, tuple)
        self._index = index
        self._tokenizer = tokenizer
        self._prompt_end = request.prompt_token_ids[-TEXT_CONTEXT:]
        self._num_logprobs = sampling.logprobs
        self._min_tokens = sampling.min_tokens
        self._shows_stop = sampling.include_stop_str_in_output
        self._detokenizer = (
            Detokenizer(
                tokenizer,
                request.prompt_token_ids,
                skip_special_tokens=sampling.skip_special_tokens,
                spaces_between_special_tokens=sampling.spaces_between_special_tokens,
            )
            if tokenizer is not None and sampling.detokenize
            else None
        )
        self._stops = StopStrings(sampling.stop, include=sampling.include_stop_str_in_output) if sampling.stop else None
        self._text = ""
        self._unread: list[int] = []
        self._token_ids: list[int] = []
        self._versions: list[tuple[str, int]] = []
        self._logprobs: list[PositionLogprobs] = []
        self._cumulative_logprob = 0.0
        self._finish_reason: str | None = None
        self._stop_reason: int | str | None = None
        self._sent_text = 0
        self._sent_tokens = 0
        self.has_news = False
        self.admission = Admission()

    @property
    def finished(self) -> bool:
        return self._finish_reason is not None

    @property
    def stopped_by_text(self) -> bool:
        return self._finish_reason == "stop" and isinstance(self._stop_reason, str)

    @property
    def began(self) -> bool:
        return bool(self._token_ids) or self.finished

    def take(self, update: SequenceUpdate) -> None:
        """Add an update's tokens, up to the one that completes a stop string."""
        token_ids, reason = update.token_ids, update.finish_reason
        self.admission = update.admission
        if token_ids and (not self._versions or self._versions[-1][0] != self.admission.weight_version):
            self._versions.append((self.admission.weight_version, len(self._token_ids)))
        self.has_news = self.has_news or bool(token_ids) or reason is not None
        hidden = len(token_ids) - 1 if reason == "stop" and not self._shows_stop else None
        for position, token_id in enumerate(token_ids):
            if self._num_logprobs is not None:
                self._note_logprobs(token_id, update.logprobs[position], self._num_logprobs)
            self._token_ids.append(token_id)
            if position == hidden:
                break  # the stop token has no text
            self._unread.append(token_id)
            if self._stops is not None and self._read():
                return
        if reason is not None:
            self._finish(reason, update.stop_reason)

    def completion(self) -> CompletionOutput:
        """Everything so far."""
        self._mark_sent()
        logprobs = None if self._num_logprobs is None else list(self._logprobs)
        return self._output(self._text[: self._sent_text], tuple(self._token_ids), logprobs, 0)

    def delta(self) -> CompletionOutput:
        """What has not been told yet."""
        text, tokens = self._sent_text, self._sent_tokens
        self._mark_sent()
        logprobs = None if self._num_logprobs is None else self._logprobs
        self._logprobs = []  # which may be many, and are never told again
        return self._output(self._text[text : self._sent_text], tuple(self._token_ids[tokens:]), logprobs, tokens)

    def _output(
        self, text: str, token_ids: tuple[int, ...], logprobs: list[PositionLogprobs] | None, start: int
    ) -> CompletionOutput:
        return CompletionOutput(
            index=self._index,
            text=text,
            token_ids=token_ids,
            cumulative_logprob=None if logprobs is None else self._cumulative_logprob,
            logprobs=logprobs,
            finish_reason=self._finish_reason,
            stop_reason=self._stop_reason,
            weight_versions=self._versions_from(start),
        )

    def _versions_from(self, start: int) -> tuple[VersionedTokens, ...]:
        """Which weights made the tokens from the one at `start` on."""
        versions, end = self._versions, len(self._token_ids)
        if end == start:
            return ()
        if versions[-1][1] <= start:
            return (VersionedTokens(versions[-1][0], end - start),)
        ends = [*(first for _, first in versions[1:]), end]
        return tuple(
            VersionedTokens(version, last - max(first, start))
            for (version, first), last in zip(versions, ends, strict=True)
            if last > start
        )

    def _mark_sent(self) -> None:
        """A running sequence holds back characters that may turn out to begin a stop string."""
        if self._unread:
            self._read()
        held = 0 if self._stops is None or self.finished else self._stops.holdback
        self._sent_text = max(self._sent_text, len(self._text) - held)
        self._sent_tokens = len(self._token_ids)
        self.has_news = False

    def _read(self) -> bool:
        """Make text of the tokens that have come. True when that completed a stop string."""
        unread, self._unread = self._unread, []
        return self._detokenizer is not None and self._add_text(self._detokenizer.push(unread))

    def _add_text(self, text: str) -> bool:
        self._text += text
        if self._stops is None:
            return False
        match = self._stops.feed(text, searching=len(self._token_ids) > self._min_tokens)
        if match is None:
            return False
        self._text = self._text[: match.keep]
        self._finish_reason, self._stop_reason = "stop", match.stop
        return True

    def _finish(self, reason: str, stop_reason: int | str | None) -> None:
        """The scheduler ended the sequence; what the detokenizer still held may yet complete a stop string."""
        if self._unread:
            self._read()
        if self._detokenizer is not None and self._add_text(self._detokenizer.finish()):
            return
        self._finish_reason, self._stop_reason = reason, stop_reason

    def _note_logprobs(self, token_id: int, row: RowLogprobs | None, count: int) -> None:
        assert row is not None, "log probabilities were asked for and the step brought none"
        context = (*self._prompt_end, *self._token_ids[-TEXT_CONTEXT:])
        position = position_logprobs(row, token_id, count=count, context=context, tokenizer=self._tokenizer)
        self._logprobs.append(position)
        self._cumulative_logprob += position[token_id].logprob
