"""What the formats of integers in words have in common whose groups of inputs may be in the order of activations."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from jaxengine.device.weights.formats import Format, Numbers, Part
from jaxengine.device.weights.rules import Array


@dataclass(frozen=True, kw_only=True)
class GroupedIntegers(Format):
    """Numbers of `bits` (4 or 8), `group` inputs with a scale in common (None: all). Without zeros they are `symmetric`.

    With `act_order` an input's group is any; columns are then sorted by it.
    """

    bits: int
    group: int | None
    symmetric: bool
    act_order: bool

    @property
    def ordered(self) -> bool:
        """Whether columns are in another order than inputs: with one group of all there is none."""
        return self.act_order and self.group is not None

    @property
    def numbers(self) -> Numbers:
        return Numbers(dtype=f"int{self.bits}", group=self.group, zeros=not self.symmetric, ordered=self.ordered)

    @property
    def parts(self) -> Mapping[str, Part]:
        parts: dict[str, Part] = {"weight": self._weight, "scale": self._scale}
        if not self.symmetric:
            parts["zero"] = self._zero
        if self.ordered:
            parts["order"] = self._order
        return parts

    @abstractmethod
    def _weight(self, tensors: Mapping[str, Array]) -> Array: ...

    @abstractmethod
    def _scale(self, tensors: Mapping[str, Array]) -> Array: ...

    @abstractmethod
    def _zero(self, tensors: Mapping[str, Array]) -> Array: ...

    @abstractmethod
    def _order(self, tensors: Mapping[str, Array]) -> Array: ...
