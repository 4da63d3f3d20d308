"""Beam search as arithmetic on log probabilities; whoever runs it asks the engine for one token of each beam at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from jaxengine.outputs import PositionLogprobs


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
