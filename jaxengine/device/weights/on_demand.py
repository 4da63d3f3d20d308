"""Parameters that are made of their tensors when they are placed: of a model that has weights, one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from jaxengine.device.weights.checkpoint import OrbaxCheckpoint, TensorCheckpoint
from jaxengine.device.weights.loader import assign, made_of, view
from jaxengine.device.weights.matching import Assignment, Write
from jaxengine.device.weights.placement import copy_part
from jaxengine.device.weights.rules import Array, Ignore, KvHeads, Rule, repeat_kv_heads


@dataclass(frozen=True)
class OnDemand:
    """One parameter (`Made`): its tensors are read when it is filled, and given up after that."""

    checkpoint: TensorCheckpoint
    assignment: Assignment
    write: Write
    config: KvHeads
    shape: tuple[int, ...]

    def fill(self, out: Array, part: tuple[slice, ...]) -> None:
        """Write the numbers within `part` to `out`."""
        tensor = view(self.checkpoint, self.assignment)
        made = made_of(self.checkpoint, self.assignment, tensor, self.write, self.config, self.shape)
        copy_part(made, part, out)
        if not self.assignment.stacked:
            for source in self.assignment.sources:
                self.checkpoint.release(source)


def on_demand(
    checkpoint: TensorCheckpoint | OrbaxCheckpoint,
    rules: Sequence[Rule | Ignore],
    parameters: Mapping[str, jax.ShapeDtypeStruct],
    config: KvHeads,
    *,
    given: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """What `loader.load` would load, by the same paths: each an array that is there, or `Made`. An Orbax checkpoint is read here.

    Those of the checkpoint's tensors that are `given` as arrays are handed through where they are a parameter as they stand.

    Raises:
        CheckpointError: as `load`.
    """
    if isinstance(checkpoint, OrbaxCheckpoint):
        from jaxengine.device.weights import orbax_format  # importing Orbax takes about a second

        return dict(orbax_format.restore(checkpoint, parameters))
    found: dict[str, Any] = {}
    for assignment in assign(checkpoint, rules, parameters, config):
        for write in assignment.writes:
            shape = parameters[write.target].shape
            array = _as_given(given or {}, assignment, write, shape)
            made = OnDemand(checkpoint, assignment, write, config, shape)
            found[write.target] = made if array is None else array
    return {path: found[path] for path in parameters}


def _as_given(given: Mapping[str, Any], assignment: Assignment, write: Write, shape: tuple[int, ...]) -> Any | None:
    """The array that was given and is the parameter; None where it has to be made."""
    if len(assignment.sources) > 1 or assignment.stacked or write.each:
        return None
    array = given.get(assignment.sources[0])
    same = write.transform is None or write.transform is repeat_kv_heads
    return array if array is not None and same and tuple(array.shape) == shape else None
