"""Weights from a checkpoint into sharded device arrays, one tensor at a time.

Host memory: a tensor is a view of its mapped file; its shards are cut from the view, cast and handed to their devices, and
the file's pages are given up before the next tensor. With `READERS` tensors under way at once the host holds at most two of the
largest tensors as stored, and of the converted weights those two, or on the CPU backend, where device memory is the host's,
all of them. Of tensors that are stacked one is read at a time, and those that no device of this host has a part of are not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from jaxengine.device.weights.checkpoint import OrbaxCheckpoint, TensorCheckpoint
from jaxengine.device.weights.matching import Assignment, Write, match
from jaxengine.device.weights.placement import copy_part, place
from jaxengine.device.weights.problems import Problems
from jaxengine.device.weights.report import Progress, Tracker
from jaxengine.device.weights.rules import Array, Ignore, KvHeads, Made, Rule

READERS = 2
"""Tensors read at once: the memory bound allows two of the largest."""

FLOATS = ("F64", "F32", "F16", "BF16")


def load(
    checkpoint: TensorCheckpoint | OrbaxCheckpoint,
    rules: Sequence[Rule | Ignore],
    parameters: Mapping[str, jax.ShapeDtypeStruct],
    config: KvHeads,
    *,
    progress: Progress | None = None,
) -> dict[str, jax.Array]:
    """Load every parameter of a model.

    Args:
        checkpoint: An opened checkpoint.
        rules: The model family's weight table.
        parameters: Dotted path to shape, dtype and sharding (None: the first device).
        config: The model config, given to the rules' transforms.
        progress: Called after each tensor, or all that are stacked, from one thread at a time.

    Returns:
        The parameters, by the same paths and in the same order.

    Raises:
        CheckpointError: tensors and parameters do not match one to one; everything wrong is listed, before any is read.
    """
    if isinstance(checkpoint, OrbaxCheckpoint):
        from jaxengine.device.weights import orbax_format  # importing Orbax takes about a second

        return orbax_format.restore(checkpoint, parameters, progress=progress)
    assignments = assign(checkpoint, rules, parameters, config)
    sizes = [sum(checkpoint.tensors[name].nbytes for name in assignment.sources) for assignment in assignments]
    tracker = Tracker(sizes, progress)

    def read(assignment: Assignment, nbytes: int) -> dict[str, jax.Array]:
        placed = {}
        tensor = view(checkpoint, assignment)
        for write in assignment.writes:
            parameter = parameters[write.target]
            made = made_of(checkpoint, assignment, tensor, write, config, parameter.shape)
            placed[write.target] = place(made, parameter)
        if not assignment.stacked:
            for source in assignment.sources:
                checkpoint.release(source)
        tracker.add(nbytes)
        return placed

    arrays: dict[str, jax.Array] = {}
    with ThreadPoolExecutor(READERS, thread_name_prefix="weights") as pool:
        for placed in pool.map(read, assignments, sizes):
            arrays.update(placed)
    return {path: arrays[path] for path in parameters}


def check(
    checkpoint: TensorCheckpoint | OrbaxCheckpoint,
    rules: Sequence[Rule | Ignore],
    parameters: Mapping[str, jax.ShapeDtypeStruct],
    config: KvHeads,
) -> None:
    """Raise what `load` would raise of names and shapes, without reading a tensor. Orbax checks its own when it restores."""
    if not isinstance(checkpoint, OrbaxCheckpoint):
        assign(checkpoint, rules, parameters, config)


def view(checkpoint: TensorCheckpoint, assignment: Assignment) -> Any:
    """What transforms take: a tensor, or all of several; None of those that are stacked, of which one is read at a time."""
    return None if assignment.stacked else _together([checkpoint.view(source) for source in assignment.sources])


def made_of(
    checkpoint: TensorCheckpoint,
    assignment: Assignment,
    tensor: Any,
    write: Write,
    config: KvHeads,
    shape: tuple[int, ...],
) -> Array | Made:
    """A parameter of `shape`, of the assignment's `tensor`, or of stacked ones, which are read as their part is asked for."""
    if assignment.stacked:
        return _Stack(checkpoint, assignment.sources, write, config, shape)
    return _Items(tensor, write, config, shape) if write.each else _made(tensor, write, config, shape)


class _Stack:
    """A parameter whose leading axis counts tensors: each is read, and given up, when its part is asked for (`Made`)."""

    def __init__(
        self,
        checkpoint: TensorCheckpoint,
        sources: Sequence[str],
        write: Write,
        config: KvHeads,
        shape: tuple[int, ...],
    ) -> None:
        self._checkpoint, self._sources, self._write, self._config = checkpoint, sources, write, config
        self.shape = shape

    def fill(self, out: Array, part: tuple[slice, ...]) -> None:
        numbers, *rest = part
        for block, source in zip(out, self._sources[numbers], strict=True):
            tensor = _made(self._checkpoint.view(source), self._write, self._config, self.shape[1:])
            copy_part(tensor, tuple(rest), block)
            self._checkpoint.release(source)


class _Items:
    """A parameter whose leading axis is that of a tensor: each item is made when its part is asked for (`Made`)."""

    def __init__(self, tensor: Array, write: Write, config: KvHeads, shape: tuple[int, ...]) -> None:
        self._tensor, self._write, self._config = tensor, write, config
        self.shape = shape

    def fill(self, out: Array, part: tuple[slice, ...]) -> None:
        numbers, *rest = part
        for block, number in zip(out, range(numbers.start, numbers.stop), strict=True):
            copy_part(_made(self._tensor[number], self._write, self._config, self.shape[1:]), tuple(rest), block)


def _together(tensors: list[Array]) -> Any:
    """What a transform takes: a tensor, or all of several sources."""
    return tensors[0] if len(tensors) == 1 else tuple(tensors)


def _made(tensor: Any, write: Write, config: KvHeads, shape: tuple[int, ...]) -> Array | Made:
    made: Array | Made = tensor if write.transform is None else write.transform(tensor, config, shape)
    return made


def _shape(
    checkpoint: TensorCheckpoint, sources: Sequence[str], write: Write, config: KvHeads, wanted: tuple[int, ...]
) -> tuple[int, ...]:
    """Of what becomes of tensors, found with stand-ins.

    Raises:
        ValueError: the transform cannot be done with a tensor of this shape.
    """
    nothing = np.zeros((), np.bool_)
    stand_in = _together([np.broadcast_to(nothing, checkpoint.tensors[source].shape) for source in sources])
    if write.each:
        return len(stand_in), *_made(stand_in[0], write, config, wanted[1:]).shape
    return _made(stand_in, write, config, wanted).shape


def assign(
    checkpoint: TensorCheckpoint,
    rules: Sequence[Rule | Ignore],
    parameters: Mapping[str, jax.ShapeDtypeStruct],
    config: KvHeads,
) -> Sequence[Assignment]:
    """Which tensors each parameter is made of; names and shapes fit.

    Raises:
        CheckpointError: as `load`.
    """
    assignments = match(checkpoint.tensors, rules, parameters, config)
    problems = Problems()
    for assignment in assignments:
        for write in assignment.writes:
            _check_shapes(checkpoint, assignment, write, parameters[write.target], config, problems)
    problems.raise_any(f"{checkpoint.path} does not fit the model's config.json")
    return assignments


def _casts(name: str, stored: Any, wanted: Any) -> bool:
    """Whether a tensor's type becomes a parameter's: any float does, integers of 64 bits become such of 32, others stay."""
    return name in FLOATS or stored == wanted or (name == "I64" and wanted == np.int32)


def _check_shapes(
    checkpoint: TensorCheckpoint,
    assignment: Assignment,
    write: Write,
    parameter: jax.ShapeDtypeStruct,
    config: KvHeads,
    problems: Problems,
) -> None:
    """Compare what becomes of tensors with the parameter."""
    count, wanted = len(assignment.sources), parameter.shape
    if assignment.stacked:
        if count != wanted[0]:
            problems.add("parameters of a wrong number of tensors", write.target, f"{count} for {list(wanted)}")
        wanted = wanted[1:]
    for sources in ([source] for source in assignment.sources) if assignment.stacked else [assignment.sources]:
        stored = [checkpoint.tensors[source] for source in sources]
        uncast = [tensor for tensor in stored if not _casts(tensor.dtype_name, tensor.dtype, parameter.dtype)]
        named, given = ", ".join(sources), ", ".join(f"{list(tensor.shape)}" for tensor in stored)
        if uncast:
            detail = f"{uncast[0].dtype_name} for {parameter.dtype}"
            problems.add("tensors of a type that cannot be cast", named, detail)
            continue
        try:
            shape = _shape(checkpoint, sources, write, config, wanted)
        except ValueError as error:
            problems.add("tensors of a wrong shape", named, f"{given} for {write.target}: {error}")
            continue
        if shape != wanted:
            detail = f"{given} gives {list(shape)}, but {write.target} is {list(wanted)}"
            problems.add("tensors of a wrong shape", named, detail)
