"""Scheduler updates to outputs: text, stop strings, log probabilities, the request's n sequences in one value; embeddings."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from jaxengine.batch import RowLogprobs
from jaxengine.engine.embeddings import embedding_output
from jaxengine.engine.logprobs import TEXT_CONTEXT, position_logprobs
from jaxengine.outputs import CompletionOutput, PositionLogprobs, RequestMetrics, RequestOutput
from jaxengine.request import Request
from jaxengine.sampling_params import RequestOutputKind
from jaxengine.scheduler.updates import SequenceUpdate
from jaxengine.text.detokenizer import Detokenizer
from jaxengine.text.stop import StopStrings
from jaxengine.text.tokenizer import Tokenizer


class Postprocessor:
    """Holds what has been generated for each running request, in the caller's terms.

    Args:
        tokenizer: None when the engine works on ids only; every text is then empty.
        clock: the clock that `Request.arrival` was read from.
    """

    def __init__(self, tokenizer: Tokenizer | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._tokenizer = tokenizer
        self._clock = clock
        self._requests: dict[str, _Progress] = {}
        self._pooling: dict[str, Request] = {}

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._requests or request_id in self._pooling

    def add(self, request: Request) -> None:
        """Begin to follow a request, before its first update."""
        assert request.request_id not in self, f"request {request.request_id!r} was added twice"
        if request.pooling is not None:
            self._pooling[request.request_id] = request
        else:
            self._requests[request.request_id] = _Progress(request, self._tokenizer)

    def discard(self, request_id: str) -> None:
        """Forget a request; its later updates are ignored. Unknown ids are fine."""
        self._requests.pop(request_id, None)
        self._pooling.pop(request_id, None)

    def process(self, updates: Sequence[SequenceUpdate]) -> tuple[list[RequestOutput], list[tuple[str, int]]]:
        """Take the news of one step.

        Returns:
            The outputs to deliver, and the (request_id, index) of sequences that a stop string ended: the scheduler does
            not know of that and must stop those that are still running.
        """
        now = self._clock()
        outputs: list[RequestOutput] = []
        stopped: list[tuple[str, int]] = []
        touched: dict[str, _Progress] = {}
        for update in updates:
            if update.request_id in self._pooling:
                outputs.append(embedding_output(self._pooling[update.request_id], update, now))
                continue
            progress = self._requests.get(update.request_id)
            if progress is None or progress.sequences[update.index].finished:
                continue  # aborted, or the one token that was under way when a stop string ended the sequence
            progress.take(update, now)
            touched[update.request_id] = progress
            if progress.sequences[update.index].stopped_by_text:
                stopped.append((update.request_id, update.index))
        outputs += [output for progress in touched.values() if (output := progress.output(now)) is not None]
        for output in outputs:
            if output.finished:
                self.discard(output.request_id)
        return outputs, stopped


class _Progress:
    """One request: its sequences, the log probabilities of its prompt, its times."""

    def __init__(self, request: Request, tokenizer: Tokenizer | None) -> None:
        self.request = request
        self.sequences = [_Sequence(request, index, tokenizer) for index in range(request.sampling.n)]
        self._tokenizer = tokenizer
        self._prompt_logprobs: list[PositionLogprobs | None] = [None]
        self._num_cached_tokens = 0
        self._first_scheduled: float | None = None
        self._first_token: float | None = None
        self._prompt_logprobs_sent = False

    def take(self, update: SequenceUpdate, now: float) -> None:
        self._note_prompt_logprobs(update)
        if update.index == 0:
            self._num_cached_tokens = update.num_cached_tokens
        if self._first_scheduled is None:
            self._first_scheduled = update.first_scheduled_time
        if self._first_token is None and update.token_ids:
            self._first_token = now
        self.sequences[update.index].take(update)

    def output(self, now: float) -> RequestOutput | None:
        """What the caller is told after this step; None when there is nothing to tell."""
        kind = self.request.sampling.output_kind
        finished = all(sequence.finished for sequence in self.sequences)
        if kind is RequestOutputKind.FINAL_ONLY and not finished:
            return None
        if kind is RequestOutputKind.DELTA:
            outputs = tuple(sequence.delta() for sequence in self.sequences if sequence.has_news)
        else:
            fresh = any(sequence.has_news for sequence in self.sequences)
            outputs = tuple(sequence.completion() for sequence in self.sequences if sequence.began) if fresh else ()
        if not outputs:
            return None
        return RequestOutput(
            request_id=self.request.request_id,
            prompt=self.request.prompt,
            prompt_token_ids=self.request.prompt_token_ids,
            outputs=outputs,
            finished=finished,
            prompt_logprobs=self._prompt_logprobs_for(kind),
            num_cached_tokens=self._num_cached_tokens,
            metrics=RequestMetrics(
                arrival_time=self.request.arrival,
                first_scheduled_time=self._first_scheduled,
                first_token_time=self._first_token,
                finished_time=now if finished else None,
                num_preemptions=sum(sequence.num_preemptions for sequence in self.sequences),
            ),
        )

    def _note_prompt_logprobs(self, update: SequenceUpdate) -> None:
        count = self.request.sampling.prompt_logprobs
        if count is None:
            return
        prompt = self.request.prompt_token_ids
        for row in update.prompt_logprobs:
            at = len(self._prompt_logprobs)
            context = prompt[max(0, at - TEXT_CONTEXT) : at]
            self._prompt_logprobs.append(
                position_logprobs(row, prompt[at], count=count, context=context, tokenizer=self._tokenizer)
            )

    def _prompt_logprobs_for(self, kind: RequestOutputKind) -> list[PositionLogprobs | None] | None:
        """Deltas carry them once, with the first output."""
        if self.request.sampling.prompt_logprobs is None:
            return None
        if kind is RequestOutputKind.DELTA and self._prompt_logprobs_sent:
            return None
        self._prompt_logprobs_sent = True
        return list(self._prompt_logprobs)


class _Sequence:
    """One of the n sequences of a request."""

    def __init__(self, request: Request, index: int, tokenizer: Tokenizer | None) -> None:
        sampling = request.sampling
        assert isinstance(sampling.stop, tuple)
        self._request = request
        self._index = index
        self._tokenizer = tokenizer
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
        self._stops = StopStrings(sampling.stop, include=sampling.include_stop_str_in_output)
        self._text = ""
        self._token_ids: list[int] = []
        self._logprobs: list[PositionLogprobs] = []
        self._cumulative_logprob = 0.0
        self._finish_reason: str | None = None
        self._stop_reason: int | str | None = None
        self._sent_text = 0
        self._sent_tokens = 0
        self._news = False
        self.num_preemptions = 0

    @property
    def finished(self) -> bool:
        return self._finish_reason is not None

    @property
    def stopped_by_text(self) -> bool:
        return isinstance(self._stop_reason, str)

    @property
    def began(self) -> bool:
        return bool(self._token_ids) or self.finished

    @property
    def has_news(self) -> bool:
        return self._news

    def take(self, update: SequenceUpdate) -> None:
        """Add an update's tokens, up to the one that completes a stop string."""
        self.num_preemptions = update.num_preemptions
        self._news = self._news or bool(update.token_ids) or update.finish_reason is not None
        last = len(update.token_ids) - 1
        for position, (token_id, row) in enumerate(zip(update.token_ids, update.logprobs, strict=True)):
            self._note_logprobs(token_id, row)
            self._token_ids.append(token_id)
            ends = position == last and update.finish_reason == "stop"
            if self._grow_text(token_id, hidden=ends and not self._request.sampling.include_stop_str_in_output):
                return
        if update.finish_reason is not None:
            self._finish(update.finish_reason, update.stop_reason)

    def completion(self) -> CompletionOutput:
        """Everything so far."""
        self._mark_sent()
        logprobs = None if self._request.sampling.logprobs is None else list(self._logprobs)
        return self._output(self._text[: self._sent_text], tuple(self._token_ids), logprobs)

    def delta(self) -> CompletionOutput:
        """What has not been told yet."""
        text, tokens = self._sent_text, self._sent_tokens
        self._mark_sent()
        logprobs = None if self._request.sampling.logprobs is None else self._logprobs[tokens:]
        return self._output(self._text[text : self._sent_text], tuple(self._token_ids[tokens:]), logprobs)

    def _output(
        self, text: str, token_ids: tuple[int, ...], logprobs: list[PositionLogprobs] | None
    ) -> CompletionOutput:
        return CompletionOutput(
            index=self._index,
            text=text,
            token_ids=token_ids,
            cumulative_logprob=None if logprobs is None else self._cumulative_logprob,
            logprobs=logprobs,
            finish_reason=self._finish_reason,
            stop_reason=self._stop_reason,
        )

    def _mark_sent(self) -> None:
        """A running sequence holds back characters that may turn out to begin a stop string."""
        held = 0 if self.finished else self._stops.holdback
        self._sent_text = max(self._sent_text, len(self._text) - held)
        self._sent_tokens = len(self._token_ids)
        self._news = False

    def _grow_text(self, token_id: int, *, hidden: bool) -> bool:
        """Add a token's text (none when it is the hidden stop token). True when that completed a stop string."""
        if self._detokenizer is None or hidden:
            return False
        return self._add_text(self._detokenizer.push((token_id,)))

    def _add_text(self, text: str) -> bool:
        self._text += text
        searching = len(self._token_ids) > self._request.sampling.min_tokens
        match = self._stops.feed(text, searching=searching)
        if match is None:
            return False
        self._text = self._text[: match.keep]
        self._finish_reason, self._stop_reason = "stop", match.stop
        return True

    def _finish(self, reason: str, stop_reason: int | str | None) -> None:
        """The scheduler ended the sequence; what the detokenizer still held may yet complete a stop string."""
        if self._detokenizer is not None and self._add_text(self._detokenizer.finish()):
            return
        self._finish_reason, self._stop_reason = reason, stop_reason

    def _note_logprobs(self, token_id: int, row: RowLogprobs | None) -> None:
        count = self._request.sampling.logprobs
        if count is None:
            return
        assert row is not None, "log probabilities were asked for and the step brought none"
        context = (*self._request.prompt_token_ids[-TEXT_CONTEXT:], *self._token_ids[-TEXT_CONTEXT:])
        position = position_logprobs(row, token_id, count=count, context=context, tokenizer=self._tokenizer)
        self._logprobs.append(position)
        self._cumulative_logprob += position[token_id].logprob
