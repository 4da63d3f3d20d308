"""Random weights of a large model in little time: one layer's parameters are made, those of the others are copies of them.

Products take as long whatever they multiply. Quantising on the host is what would take minutes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp

from jaxengine.device.weights.checkpoint import TensorCheckpoint
from jaxengine.device.weights.loader import assign, made_of, view
from jaxengine.device.weights.placement import place
from jaxengine.device.weights.rules import Ignore, KvHeads, Rule
from jaxengine.startup import weights


@contextmanager
def alike_layers() -> Iterator[None]:
    """Engines that start meanwhile load such weights."""
    load = weights.load
    weights.load = _load  # type: ignore[assignment]
    try:
        yield
    finally:
        weights.load = load


def _load(
    checkpoint: TensorCheckpoint,
    rules: Sequence[Rule | Ignore],
    parameters: Mapping[str, jax.ShapeDtypeStruct],
    config: KvHeads,
    **_: Any,
) -> dict[str, jax.Array]:
    """In the place of `loader.load`."""
    first: dict[tuple[str, Any, Any], str] = {}
    stands_for = {
        path: first.setdefault((re.sub(r"(?<=\.)\d+(?=\.)", "*", path), struct.shape, struct.dtype), path)
        for path, struct in parameters.items()
    }
    made = {}
    for assignment in assign(checkpoint, rules, parameters, config):
        writes = [write for write in assignment.writes if stands_for[write.target] == write.target]
        tensor = view(checkpoint, assignment) if writes else None
        for write in writes:
            struct = parameters[write.target]
            made[write.target] = place(made_of(checkpoint, assignment, tensor, write, config, struct.shape), struct)
    return {path: made[path] if path in made else jnp.copy(made[stands_for[path]]) for path in parameters}
