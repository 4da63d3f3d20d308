"""A draft model, as the programs of an engine follow from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax

from jaxengine.device.models.drafts.interface import Draft
from jaxengine.device.models.parameters import ModelGraph, merge

DRAFT_PREFIX = "draft."
"""Begins the paths of a draft model's parameters beside the target's."""


@dataclass(frozen=True, kw_only=True)
class DraftSpace:
    """A draft model, as the programs that run it follow from it.

    `parameters` are its own, by paths of its own; those in `shared` are the target's arrays, by its path. `as_draft` makes of the
    module what drafts. `ahead` and `taps` are as in `Draft`.
    """

    graph: ModelGraph
    parameters: dict[str, jax.ShapeDtypeStruct]
    shared: Mapping[str, str] = field(default_factory=dict)
    ahead: bool = False
    taps: tuple[int, ...] = ()
    as_draft: Callable[[Any], Draft]

    @property
    def structs(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        return tuple(self.parameters.values())

    @property
    def own(self) -> dict[str, jax.ShapeDtypeStruct]:
        """The parameters that are not the target's."""
        return {path: struct for path, struct in self.parameters.items() if path not in self.shared}

    def merge(self, arrays: Sequence[Any]) -> Draft:
        """The draft with `arrays` as its parameters, for use while a program is traced."""
        return self.as_draft(merge(self.graph, arrays))
