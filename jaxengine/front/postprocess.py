"""Scheduler updates to outputs: text, stop strings, log probabilities, the request's n sequences; or what was pooled."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence

from jaxengine.contract.lora_request import LoRARequest
from jaxengine.contract.messages import Abort
from jaxengine.contract.outputs import (
    CompletionOutput,
    Output,
    PooledOutput,
    PositionLogprobs,
    RequestMetrics,
    RequestOutput,
)
from jaxengine.contract.request import Request
from jaxengine.contract.sampling_params import RequestOutputKind
from jaxengine.contract.updates import Admission, SequenceUpdate
from jaxengine.front.pooled import aborted_output, pooled_output
from jaxengine.front.prompt_positions import PromptPositions
from jaxengine.front.sequence_output import SequenceOutput
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
            return Progress(_Pooling(request))
        return Progress(_Generation(request, self._tokenizer, kind, lazy=self._lazy, clock=self._clock))


class Progress:
    """What has been generated for one request, in the caller's terms. `finished` once its last output was returned."""

    def __init__(self, builder: _Generation | _Pooling) -> None:
        self.request = builder.request
        self.finished = self._failed = False
        self._builder = builder

    def take(self, update: SequenceUpdate) -> bool:
        """Take what came, in order; whether `tell` has something to say because of it."""
        if self.finished:
            return False  # under way when a stop string ended the last sequence
        try:
            return self._builder.take(update)
        except Exception:
            return self._fail()

    @property
    def tells_each(self) -> bool:
        """Whether a token alone is something to tell."""
        return self._builder.tells_each

    def sink(self, index: int, admission: Admission) -> list[int] | None:
        """Where the tokens of one of its sequences may be put as they come, in the place of updates, which `tell` then tells of.

        None where each has to be looked at. `admission` is how the sequence came to run.
        """
        return None if self.finished else self._builder.sink(index, admission)

    def tell(self) -> tuple[Output | None, Abort | None]:
        """What there is to say of the updates that were taken.

        Returns:
            The output to deliver, None where there is nothing to tell; and what the core has to be told, if anything: the
            sequences that a stop string ended, of which it does not know; or the request, which has ended with `abort` because
            its output cannot be built.
        """
        if not self._failed:
            try:
                output, stopped = self._builder.tell()
            except Exception:
                self._fail()
            else:
                self.finished = output is not None and output.finished
                return output, Abort(stopped=stopped) if stopped else None
        return _aborted(self.request), Abort((self.request.request_id,))

    def process(self, updates: Iterable[SequenceUpdate]) -> tuple[Output | None, Abort | None]:
        """Take what came, of one step or of several, in order; what `tell` says then."""
        due = False
        for update in updates:
            due |= self.take(update)
        return self.tell() if due else (None, None)

    def _fail(self) -> bool:
        """The output cannot be built, which is to be told."""
        logger.exception("request %s is aborted: its output cannot be built", self.request.request_id)
        self.finished = self._failed = True
        return True


def _aborted(request: Request) -> Output:
    if request.pooling is not None:
        return aborted_output(request, UNBUILDABLE)
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

    tells_each = False

    def __init__(self, request: Request) -> None:
        self.request = request

    def sink(self, index: int, admission: Admission) -> None:
        return None

    def take(self, update: SequenceUpdate) -> bool:
        self._update = update
        return True

    def tell(self) -> tuple[PooledOutput, tuple[tuple[str, int], ...]]:
        if self._update.finish_reason in ("abort", "error"):
            reason = self._update.stop_reason
            return aborted_output(self.request, None if reason is None else str(reason)), ()
        return pooled_output(self.request, self._update), ()


class _Generation:
    """One request: its sequences, the log probabilities of its prompt, its times."""

    def __init__(
        self,
        request: Request,
        tokenizer: Tokenizer | None,
        kind: RequestOutputKind,
        *,
        lazy: bool,
        clock: Callable[[], float],
    ) -> None:
        self.request = request
        self._kind = kind
        self._sequences = [SequenceOutput(request, index, tokenizer) for index in range(request.sampling.n)]
        self._num_running = len(self._sequences)
        self._tokenizer = tokenizer
        self._prompt = PromptPositions(request, tokenizer)
        self._positions: list[PositionLogprobs | None] | None = None if lazy else [None]
        self._clock = clock
        self._stopped: tuple[tuple[str, int], ...] = ()
        self.tells_each = kind is not RequestOutputKind.FINAL_ONLY
        self._first_scheduled: float | None = None
        self._first_token: float | None = None
        self._prompt_logprobs_sent = False

    def take(self, update: SequenceUpdate) -> bool:
        """Add what came; whether the caller or the core is to be told of it."""
        sequence = self._sequences[update.index]
        if sequence.finished:
            return False  # what was under way when a stop string ended it
        if self._first_token is None or update.prompt_logprobs:
            self._note(update)
        sequence.take(update)
        if sequence.finished:
            self._num_running -= 1
            if sequence.stopped_by_text:
                self._stopped = (*self._stopped, (update.request_id, update.index))
        return self.tells_each or not self._num_running or bool(self._stopped)

    def sink(self, index: int, admission: Admission) -> list[int] | None:
        """Where tokens of a sequence may be put; not before the first one, whose time is noted."""
        return None if self._first_token is None else self._sequences[index].sink(admission)

    def tell(self) -> tuple[RequestOutput | None, tuple[tuple[str, int], ...]]:
        """The output after these updates, and the sequences that a stop string ended."""
        stopped, self._stopped = self._stopped, ()
        return self._output(self._clock()), stopped

    def _note(self, update: SequenceUpdate) -> None:
        if update.prompt_logprobs:
            self._note_prompt_logprobs(update)
        if self._first_scheduled is None:
            self._first_scheduled = update.admission.first_scheduled_time
        if self._first_token is None and update.token_ids:
            self._first_token = self._clock()

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
            num_cached_tokens=self._sequences[0].admission.num_cached_tokens,
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
