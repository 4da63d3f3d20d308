"""Weights from a checkpoint into sharded device arrays, one tensor at a time.

Host memory: a tensor is a view of its mapped file; its shards are cut from the view, cast and handed to their devices, and
the file's pages are given up before the next tensor. With `READERS` tensors under way at once the host holds at most two of the
largest tensors as stored, and of the converted weights those two, or on the CPU backend, where device memory is the host's,
all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from jaxengine.weights.checkpoint import OrbaxCheckpoint, SafetensorsCheckpoint
from jaxengine.weights.matching import Assignment, match
from jaxengine.weights.placement import place
from jaxengine.weights.problems import Problems
from jaxengine.weights.report import Progress, Tracker
from jaxengine.weights.rules import Ignore, Rule

READERS = 2
"""Tensors read at once: the memory bound allows two of the largest."""

FLOATS = ("F64", "F32", "F16", "BF16")


def load(
    checkpoint: SafetensorsCheckpoint | OrbaxCheckpoint,
    rules: Sequence[Rule | Ignore],
    parameters: Mapping[str, jax.ShapeDtypeStruct],
    config: Any,
    *,
    progress: Progress | None = None,
) -> dict[str, jax.Array]:
    """Load every parameter of a model.

    Args:
        checkpoint: An opened checkpoint.
        rules: The model family's weight table.
        parameters: Dotted path to shape, dtype and sharding (None: the first device).
        config: The model config, given to the rules' transforms.
        progress: Called after each tensor, from one thread at a time.

    Returns:
        The parameters, by the same paths and in the same order.

    Raises:
        CheckpointError: tensors and parameters do not match one to one; everything wrong is listed, before any is read.
    """
    if isinstance(checkpoint, OrbaxCheckpoint):
        from jaxengine.weights import orbax_format  # importing Orbax takes about a second

        return orbax_format.restore(checkpoint, parameters, progress=progress)
    assignments = _assign(checkpoint, rules, parameters, config)
    tracker = Tracker([checkpoint.tensors[assignment.source].nbytes for assignment in assignments], progress)

    def read(assignment: Assignment) -> dict[str, jax.Array]:
        view = checkpoint.view(assignment.source)
        placed = {}
        for write in assignment.writes:
            tensor = view if write.transform is None else write.transform(view, config)
            placed[write.target] = place(tensor, parameters[write.target])
        checkpoint.release(assignment.source)
        tracker.add(view.nbytes)
        return placed

    arrays: dict[str, jax.Array] = {}
    with ThreadPoolExecutor(READERS, thread_name_prefix="weights") as pool:
        for placed in pool.map(read, assignments):
            arrays.update(placed)
    return {path: arrays[path] for path in parameters}


def check(
    checkpoint: SafetensorsCheckpoint | OrbaxCheckpoint,
    rules: Sequence[Rule | Ignore],
    parameters: Mapping[str, jax.ShapeDtypeStruct],
    config: Any,
) -> None:
    """Raise what `load` would raise of names and shapes, without reading a tensor. Orbax checks its own when it restores."""
    if isinstance(checkpoint, SafetensorsCheckpoint):
        _assign(checkpoint, rules, parameters, config)


def _assign(
    checkpoint: SafetensorsCheckpoint,
    rules: Sequence[Rule | Ignore],
    parameters: Mapping[str, jax.ShapeDtypeStruct],
    config: Any,
) -> Sequence[Assignment]:
    assignments = match(checkpoint.tensors, rules, parameters, config)
    _check_shapes(checkpoint, assignments, parameters, config)
    return assignments


def _check_shapes(
    checkpoint: SafetensorsCheckpoint,
    assignments: Sequence[Assignment],
    parameters: Mapping[str, jax.ShapeDtypeStruct],
    config: Any,
) -> None:
    """Run every transform on a stand-in of the tensor's shape and compare what comes out with the parameter."""
    problems = Problems()
    for assignment in assignments:
        stored = checkpoint.tensors[assignment.source]
        for write in assignment.writes:
            parameter = parameters[write.target]
            if stored.dtype_name not in FLOATS and stored.dtype != parameter.dtype:
                problems.add(
                    "tensors of a type that cannot be cast",
                    assignment.source,
                    f"{stored.dtype_name} for {parameter.dtype}",
                )
                continue
            stand_in = np.broadcast_to(np.zeros((), np.bool_), stored.shape)
            try:
                shape = (stand_in if write.transform is None else write.transform(stand_in, config)).shape
            except ValueError as error:
                problems.add(
                    "tensors of a wrong shape", assignment.source, f"{list(stored.shape)} for {write.target}: {error}"
                )
                continue
            if shape != parameter.shape:
                problems.add(
                    "tensors of a wrong shape",
                    assignment.source,
                    f"{list(stored.shape)} gives {list(shape)}, but {write.target} is {list(parameter.shape)}",
                )
    problems.raise_any(f"{checkpoint.path} does not fit the model's config.json")
