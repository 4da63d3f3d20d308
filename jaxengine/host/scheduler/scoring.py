"""Which positions of a prompt have had the log probabilities of what follows them asked for."""

from __future__ import annotations

from jaxengine.contract.arrays import Int32s
from jaxengine.contract.rows import Score


class Scoring:
    """The log probabilities of one prompt: those of `wanted` positions, of which the first `asked` have been asked for."""

    __slots__ = ("asked", "wanted")

    def __init__(self, prompt_length: int, *, asked: int = 0) -> None:
        self.wanted = prompt_length - 1
        self.asked = asked

    @property
    def is_done(self) -> bool:
        """Whether everything has been asked for."""
        return self.asked >= self.wanted

    def begins(self, start: int) -> bool:
        """Whether a row from `start` on is to be scored: after a preemption what has been scored is not scored again."""
        return self.asked < self.wanted and start >= self.asked

    def ask(self, tokens: Int32s, start: int, end: int, *, sample: bool) -> Score:
        """What is asked of a row of `tokens[start:end]`, which is noted; `sample` as in `Score`."""
        self.asked = min(end, self.wanted)
        return Score(tuple(tokens[start + 1 : self.asked + 1].tolist()), sample=sample)
