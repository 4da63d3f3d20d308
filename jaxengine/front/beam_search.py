"""Beam search as arithmetic on log probabilities; whoever runs it asks the engine for one token of each beam at a time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from jaxengine.contract.outputs import PositionLogprobs, RequestOutput
from jaxengine.contract.request import Request
from jaxengine.contract.sampling_params import BeamSearchParams, SamplingParams
from jaxengine.front.prompts import ParsedPrompt


@dataclass(frozen=True, slots=True)
class BeamSearchSequence:
    """A candidate: the prompt's and its own token ids, the sum of its log probabilities, and its text with the prompt's.

    `finish_reason` is `stop` when it ended with an end-of-sequence token, `length` when it was cut, None while it grows.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[PositionLogprobs, ...] = ()
    cum_logprob: float = 0.0
    text: str | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


@dataclass(frozen=True, slots=True)
class BeamSearchOutput:
    """The best sequences for one prompt, best first."""

    sequences: tuple[BeamSearchSequence, ...]


@dataclass(slots=True)
class Beams:
    """The search of one prompt: `active` beams grow, `completed` ones ended with an end-of-sequence token."""

    width: int
    length_penalty: float
    end_ids: frozenset[int]
    keep_end: bool
    allowed: frozenset[int] | None
    active: list[BeamSearchSequence]
    completed: list[BeamSearchSequence] = field(default_factory=list)

    def advance(self, candidates: Sequence[PositionLogprobs]) -> None:
        """Grow each active beam by each of its candidate tokens, and keep the best `width` of all."""
        grown: list[BeamSearchSequence] = []
        for beam, position in zip(self.active, candidates, strict=True):
            for token_id, entry in position.items():
                if self.allowed is not None and token_id not in self.allowed:
                    continue
                ends = token_id in self.end_ids
                longer = BeamSearchSequence(
                    tokens=(*beam.tokens, token_id) if not ends or self.keep_end else beam.tokens,
                    logprobs=(*beam.logprobs, position),
                    cum_logprob=beam.cum_logprob + entry.logprob,
                    finish_reason="stop" if ends else None,
                )
                (self.completed if ends else grown).append(longer)
        self.active = sorted(grown, key=self.score, reverse=True)[: self.width]

    def best(self) -> list[BeamSearchSequence]:
        """The best `width` sequences, ended or not."""
        return sorted([*self.completed, *self.active], key=self.score, reverse=True)[: self.width]

    def score(self, beam: BeamSearchSequence) -> float:
        """Log probability over the length, prompt included and the end of sequence not, to the power of the length penalty."""
        length = len(beam.tokens) - (self.keep_end and beam.finish_reason == "stop")
        return float(beam.cum_logprob / max(length, 1) ** self.length_penalty)


def beam_step(params: BeamSearchParams) -> SamplingParams:
    """What a step asks of each beam: one token's best candidates."""
    return SamplingParams(
        max_tokens=1,
        logprobs=2 * params.beam_width,
        temperature=params.temperature,
        allowed_token_ids=params.allowed_token_ids,
        detokenize=False,
    )


def search_beams(
    requests: Sequence[Request],
    params: BeamSearchParams,
    *,
    end_ids: Collection[int],
    max_model_len: int,
    run: Callable[[list[ParsedPrompt]], Sequence[RequestOutput]],
) -> list[Beams]:
    """The finished searches of prompts, whose beams grow together.

    Args:
        requests: the prompts.
        params: of all searches.
        end_ids: tokens that end a sequence, unless `ignore_eos`.
        max_model_len: tokens of the longest sequence.
        run: answers prompts by `beam_step`, in their order.
    """
    allowed = None if params.allowed_token_ids is None else frozenset(params.allowed_token_ids)
    searches = [
        Beams(
            width=params.beam_width,
            length_penalty=params.length_penalty,
            end_ids=frozenset() if params.ignore_eos else frozenset(end_ids),
            keep_end=params.include_stop_str_in_output,
            allowed=allowed,
            active=[BeamSearchSequence(request.prompt_token_ids)],
        )
        for request in requests
    ]
    for _ in range(params.max_tokens):
        growing = [
            (search, request)
            for search, request in zip(searches, requests, strict=True)
            if search.active and len(search.active[0].tokens) < max_model_len
        ]
        if not growing:
            break
        outputs = iter(
            run(
                [
                    ParsedPrompt(
                        token_ids=beam.tokens,
                        cache_salt=request.cache_salt,
                        adapter=request.adapter,
                        media=request.media,
                    )
                    for search, request in growing
                    for beam in search.active
                ]
            )
        )
        for search, _ in growing:
            search.advance([_only_position(next(outputs)) for _ in search.active])
    return searches


def _only_position(output: RequestOutput) -> PositionLogprobs:
    """The log probabilities of the one token that a step asked for."""
    logprobs = output.outputs[0].logprobs
    assert logprobs is not None
    return logprobs[0]
