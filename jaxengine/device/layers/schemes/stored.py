"""Matrices kept as a quantised checkpoint has them: which scheme that is for each, by its name in the checkpoint."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Protocol

from jaxengine.device.layers.schemes import HEAD, WEIGHT, Scheme, is_weight
from jaxengine.device.layers.schemes.dense import DENSE
from jaxengine.device.layers.schemes.int8 import INT8
from jaxengine.device.layers.schemes.scaled import Scaled
from jaxengine.device.weights.formats import Format
from jaxengine.device.weights.rules import Ignore, Rule


class StoredFormats(Protocol):
    """What a checkpoint says of its matrices. A value."""

    @property
    def method(self) -> str:
        """Its name for them."""
        ...

    @property
    def head(self) -> bool:
        """Whether what `of` says of the head holds; else it is a plain matrix, or read as one."""
        ...

    def of(self, *modules: str) -> Format | None:
        """How the matrix of a module is stored; None: as it is. Of several names one is the module's, which is not known."""
        ...


@dataclass(frozen=True)
class Stored:
    """`sources` are the targets and sources of the family's matrices."""

    formats: StoredFormats
    sources: tuple[tuple[str, str], ...]

    @classmethod
    def by(cls, formats: StoredFormats, rules: Iterable[Rule | Ignore]) -> Stored:
        """The matrices are those of a family's weight table, and its head."""
        matrices = (
            rule for rule in rules if isinstance(rule, Rule) and (is_weight(rule.target) or rule.target == HEAD)
        )
        return cls(formats, tuple((rule.target, rule.source) for rule in matrices))

    def of(self, path: str) -> Scheme:
        """What keeps the matrix whose numbers are the parameter `path`."""
        found = self.formats.of(*self._modules(path))
        if found is None or (path == HEAD and not self.formats.head):
            return DENSE
        numbers = found.numbers
        if numbers.round_rows and numbers.dtype == "int8":
            return INT8
        return Scaled(**{field.name: getattr(numbers, field.name) for field in fields(numbers)})

    def _modules(self, path: str) -> Sequence[str]:
        """What the matrix at `path` may be called in the checkpoint; of experts, the first."""
        names = []
        for target, source in self.sources:
            if match := re.fullmatch(re.escape(target).replace(r"\*", "([0-9]+)"), path):
                numbers = iter(match.groups())
                filled = re.sub(r"\*", lambda _: next(numbers), re.sub(r"\{\w+\}", "0", source))  # noqa: B023
                names += [name.removesuffix(f".{WEIGHT}") for name in _spellings(filled)]
        return names


def _spellings(source: str) -> Iterable[str]:
    """A source with and without each of its parts in brackets."""
    choices = [(part[1:-1], "") if part.startswith("[") else (part,) for part in re.split(r"(\[[^\]]*\])", source)]
    return map("".join, itertools.product(*choices))
