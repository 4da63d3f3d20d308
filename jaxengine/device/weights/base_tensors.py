"""Tensors of a base model by the names that adapters' files have for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property

from jaxengine.device.layers.schemes import EMBEDDING, HEAD
from jaxengine.device.weights.checkpoint import TensorCheckpoint
from jaxengine.device.weights.matching import source_pattern
from jaxengine.device.weights.rules import Array, Ignore, Rule


class BaseTensors:
    """The tensors of a checkpoint. A head that is tied to the embedding is the embedding's.

    Args:
        rules: the family's.
        tied: whether the head is.
        open: the checkpoint, None where its tensors are not known; called when one is first asked for.
    """

    def __init__(
        self, rules: Sequence[Rule | Ignore], *, tied: bool, open: Callable[[], TensorCheckpoint | None]
    ) -> None:
        self._rules = [rule for rule in rules if isinstance(rule, Rule)]
        self._tied = tied
        self._open = open

    def __call__(self, name: str) -> Array | None:
        """The tensor of this name, or of another that stands for the same parameter; None: there is none, or it is not known."""
        if self._checkpoint is None:
            return None
        found = next((each for each in self._names(name) if each in self._checkpoint.tensors), None)
        return None if found is None else self._checkpoint.view(found)

    @cached_property
    def _checkpoint(self) -> TensorCheckpoint | None:
        return self._open()

    def _names(self, name: str) -> Iterator[str]:
        """The name, and what checkpoints of the model call the same."""
        yield name
        assert self._checkpoint is not None
        for rule in self._rules:
            match = source_pattern(rule.source).fullmatch(name)
            if match is None:
                continue
            same = [rule]
            if self._tied and rule.target == HEAD:
                same = [each for each in self._rules if each.target == EMBEDDING]
            for pattern in (source_pattern(each.source) for each in same):
                others = ((other, pattern.fullmatch(other)) for other in self._checkpoint.tensors)
                yield from (other for other, found in others if found is not None and found.groups() == match.groups())
