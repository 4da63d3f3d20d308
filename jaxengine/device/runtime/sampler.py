"""Chooses and calls the programs that sample."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax

from jaxengine.device.runtime.executables import Executables
from jaxengine.device.runtime.forward import Call, ForwardPass
from jaxengine.device.runtime.sampling_shapes import SampleShape
from jaxengine.device.runtime.space import ProgramSpace
from jaxengine.device.sampling import SampleInputs, SampleOutputs, Slots, Variant


class Sampler:
    """What samples with the parameters of a forward pass."""

    def __init__(self, space: ProgramSpace, forward: ForwardPass, executables: Executables) -> None:
        self._shapes, self._forward, self._executables = space.sampling, forward, executables

    def shape(self, num_rows: int, variant: Variant, *, adapters: bool = False) -> SampleShape:
        """The smallest that there are programs for; for the largest there always are."""
        shapes = (SampleShape(rows, variant, adapters) for rows in self._shapes.row_counts if rows >= num_rows)
        return next(filter(self.exists, shapes), SampleShape(self._shapes.kept, variant, adapters))

    def exists(self, shape: SampleShape) -> bool:
        """Whether all programs of a shape are there."""
        return all(name in self._executables for name in self._shapes.names(shape))

    def sample(
        self, call: Call, shape: SampleShape, hidden: jax.Array, kept: SampleInputs, slots: Slots
    ) -> tuple[SampleOutputs, Slots]:
        """Sample the first rows of `hidden [K, E]`; what was sampled, and the slots after it."""
        *apart, name = self._shapes.names(shape)
        parameters = self._forward.outer + self._forward.scoring if shape.adapters else self._forward.outer
        given: tuple[Any, ...] = (parameters, hidden, kept)
        if apart:
            slots, given = call(*apart, *given, slots), (replace(kept, adapters=None),)
        return call(name, *given, slots)  # type: ignore[no-any-return]
