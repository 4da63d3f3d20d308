"""The right answer of a request, computed alone, and what a client may have got of it."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import numpy as np

from jaxengine.contract.outputs import CompletionOutput, Output, PoolingRequestOutput, PositionLogprobs
from jaxengine.contract.request import Request
from jaxengine.contract.sampling_params import RequestOutputKind
from jaxengine.front.pooled import finished
from jaxengine.text.stop import StopStrings
from tests.fakes import oracle, oracle_embedding, shown_by
from tests.grammar.characters import text_of
from tests.harness import VOCAB
from tests.simulation.scenario import Sizes


@dataclass(slots=True)
class Answer:
    """One sequence, as far as it has come. Log probabilities are those of the sampled tokens."""

    tokens: list[int] = field(default_factory=list)
    text: str = ""
    logprobs: list[float] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    def is_prefix_of(self, whole: Answer) -> bool:
        """Whether no more came than the beginning of what is right."""
        return (
            whole.tokens[: len(self.tokens)] == self.tokens
            and whole.text.startswith(self.text)
            and whole.logprobs[: len(self.logprobs)] == self.logprobs
        )


@dataclass(slots=True)
class Received:
    """What a client was given of one request."""

    request: Request
    sequences: dict[int, Answer] = field(default_factory=dict)
    prompt_logprobs: list[float] = field(default_factory=list)
    embedding: np.ndarray | None = None
    finished: bool = False
    wrong: list[str] = field(default_factory=list)

    def take(self, output: Output) -> None:
        """Add an output, in whatever manner the request wants them."""
        if self.finished:
            self.wrong.append("an output after the last one")
        if output.request_id != self.request.request_id or output.prompt_token_ids != self.request.prompt_token_ids:
            self.wrong.append(f"an output of request {output.request_id}")
        self.finished = output.finished
        if isinstance(output, PoolingRequestOutput):
            self.embedding = output.outputs.data
            return
        if output.prompt_logprobs is not None:
            self.prompt_logprobs = _numbers(output.prompt_logprobs[1:], self.request.prompt_token_ids[1:])
        for completion in output.outputs:
            self._add(completion)

    def _add(self, completion: CompletionOutput) -> None:
        sequence = self.sequences.setdefault(completion.index, Answer())
        if sequence.finish_reason is not None and self.request.sampling.output_kind is RequestOutputKind.DELTA:
            self.wrong.append(f"an output of sequence {completion.index} after its last one")
        if self.request.sampling.output_kind is not RequestOutputKind.DELTA:
            if sequence.tokens != list(completion.token_ids[: len(sequence.tokens)]):
                self.wrong.append(f"tokens of sequence {completion.index} were taken back")
            sequence = self.sequences[completion.index] = Answer()
        sequence.tokens += completion.token_ids
        sequence.text += completion.text
        if completion.logprobs is not None:
            sequence.logprobs += _numbers(completion.logprobs, completion.token_ids)
        sequence.finish_reason, sequence.stop_reason = completion.finish_reason, completion.stop_reason


def errors_of(received: Received, sizes: Sizes, max_len: int, *, whole: bool) -> list[str]:
    """What is wrong with what a client got, of which all must be there if `whole`. `max_len` bounds prompt and output."""
    request, errors = received.request, list(received.wrong)
    if request.pooling is not None:
        shown, until, read = shown_by(request, sight=sizes.sight)
        wanted = finished(oracle_embedding(shown, until, read), request.pooling, request.prompt_token_ids)
        if received.embedding is not None and not np.array_equal(received.embedding, wanted):
            errors.append("another embedding")
        return [*errors, *(["no embedding"] if whole and received.embedding is None else [])]
    for index in range(request.sampling.n):
        wanted, prompt_logprobs = answer_of(request, index, sizes, max_len)
        if index == 0 and received.prompt_logprobs != prompt_logprobs and (whole or received.prompt_logprobs):
            errors.append(f"log probabilities of the prompt {received.prompt_logprobs}, not {prompt_logprobs}")
        got = received.sequences.get(index, Answer())
        if got != wanted and (whole or got.finish_reason is not None or not got.is_prefix_of(wanted)):
            errors.append(f"sequence {index} is {got}, not {wanted}")
    return errors


def answer_of(request: Request, index: int, sizes: Sizes, max_len: int) -> tuple[Answer, list[float]]:
    """A sequence's whole answer, and the log probabilities of the prompt if they were asked for."""
    keeps = tuple(itertools.chain.from_iterable(sizes.keeps))
    expected = oracle(
        request, index, vocab_size=VOCAB, max_len=max_len, keeps=keeps, recurrent=sizes.recurrent, sight=sizes.sight
    )
    sampling = request.sampling
    logprobs = [] if sampling.logprobs is None else [each for each in expected.logprobs if each is not None]
    answer = Answer([], "", logprobs, expected.finish_reason, expected.stop_reason)
    stops = StopStrings(tuple(sampling.stop or ()), include=sampling.include_stop_str_in_output)
    last = len(expected.tokens) - 1
    for place, token in enumerate(expected.tokens):
        answer.tokens.append(token)
        if place == last and answer.finish_reason == "stop" and not sampling.include_stop_str_in_output:
            break  # the token that ends a sequence has no text
        answer.text += text_of([token])
        match = stops.feed(text_of([token]))
        if match is not None:
            answer.text = answer.text[: match.keep]
            answer.finish_reason, answer.stop_reason = "stop", match.stop
            break
    answer.logprobs = logprobs[: len(answer.tokens)]
    return answer, list(expected.prompt_logprobs)


def _numbers(positions: list[PositionLogprobs] | list[PositionLogprobs | None], tokens: tuple[int, ...]) -> list[float]:
    return [position[token].logprob for position, token in zip(positions, tokens, strict=True) if position is not None]
