"""One sequence from its updates to what a caller reads of it: text, stop strings, log probabilities."""

from __future__ import annotations

from jaxengine.contract.batch import RowLogprobs
from jaxengine.contract.outputs import CompletionOutput, PositionLogprobs, VersionedTokens
from jaxengine.contract.request import Request
from jaxengine.contract.updates import Admission, SequenceUpdate
from jaxengine.front.logprobs import TEXT_CONTEXT, position_logprobs
from jaxengine.text.detokenizer import Detokenizer
from jaxengine.text.stop import StopStrings
from jaxengine.text.tokenizer import Tokenizer


class SequenceOutput:
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
        self._token_ids: list[int] = []
        self._num_read = self._num_hidden = 0
        self._versions: list[tuple[str, int]] = []
        self._logprobs: list[PositionLogprobs] = []
        self._cumulative_logprob = 0.0
        self._reads_each = self._stops is not None or self._num_logprobs is not None
        self._finish_reason: str | None = None
        self._stop_reason: int | str | None = None
        self.finished = False
        self._sent_text = 0
        self._sent_tokens = 0
        self._end_is_told = False
        self.admission = Admission()

    @property
    def stopped_by_text(self) -> bool:
        return self._finish_reason == "stop" and isinstance(self._stop_reason, str)

    @property
    def has_news(self) -> bool:
        """Whether there is something that was not told."""
        return len(self._token_ids) > self._sent_tokens or self.finished is not self._end_is_told

    @property
    def began(self) -> bool:
        return bool(self._token_ids) or self.finished

    def take(self, update: SequenceUpdate) -> None:
        """Add an update's tokens, up to the one that completes a stop string."""
        token_ids, reason = update.token_ids, update.finish_reason
        if update.admission is not self.admission or not self._versions:
            self._note_admission(update.admission, any_tokens=bool(token_ids))
        if reason is None and not self._reads_each:
            self._token_ids += token_ids
            return
        hidden = len(token_ids) - 1 if reason == "stop" and not self._shows_stop else None
        for position, token_id in enumerate(token_ids):
            if self._num_logprobs is not None:
                self._note_logprobs(token_id, update.logprobs[position], self._num_logprobs)
            self._token_ids.append(token_id)
            if position == hidden:
                self._num_hidden = 1  # the stop token has no text
            elif self._stops is not None and self._read():
                return
        if reason is not None:
            self._finish(reason, update.stop_reason)

    def sink(self, admission: Admission) -> list[int] | None:
        """Where its tokens may be put as they come from now on; None where each has to be looked at."""
        if self._reads_each or self.finished:
            return None
        self._note_admission(admission, any_tokens=True)
        return self._token_ids

    def _note_admission(self, admission: Admission, *, any_tokens: bool) -> None:
        self.admission = admission
        version = admission.weight_version
        if any_tokens and (not self._versions or self._versions[-1][0] != version):
            self._versions.append((version, len(self._token_ids)))

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
        self._read()
        held = 0 if self._stops is None or self.finished else self._stops.holdback
        self._sent_text = max(self._sent_text, len(self._text) - held)
        self._sent_tokens = len(self._token_ids)
        self._end_is_told = self.finished

    def _read(self) -> bool:
        """Make text of the tokens that have come. True when that completed a stop string."""
        begin, end = self._num_read, len(self._token_ids) - self._num_hidden
        if begin == end:
            return False
        self._num_read = end
        return self._detokenizer is not None and self._add_text(self._detokenizer.push(self._token_ids[begin:end]))

    def _add_text(self, text: str) -> bool:
        self._text += text
        if self._stops is None:
            return False
        match = self._stops.feed(text, searching=len(self._token_ids) > self._min_tokens)
        if match is None:
            return False
        self._text = self._text[: match.keep]
        self._end("stop", match.stop)
        return True

    def _finish(self, reason: str, stop_reason: int | str | None) -> None:
        """The scheduler ended the sequence; what the detokenizer still held may yet complete a stop string."""
        self._read()
        if self._detokenizer is not None and self._add_text(self._detokenizer.finish()):
            return
        self._end(reason, stop_reason)

    def _end(self, reason: str, stop_reason: int | str | None) -> None:
        self._finish_reason, self._stop_reason, self.finished = reason, stop_reason, True

    def _note_logprobs(self, token_id: int, row: RowLogprobs | None, count: int) -> None:
        assert row is not None, "log probabilities were asked for and the step brought none"
        context = (*self._prompt_end, *self._token_ids[-TEXT_CONTEXT:])
        position = position_logprobs(row, token_id, count=count, context=context, tokenizer=self._tokenizer)
        self._logprobs.append(position)
        self._cumulative_logprob += position[token_id].logprob
