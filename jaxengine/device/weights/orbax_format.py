"""Orbax as storage: parameters in the engine's layout, written once and restored in parallel straight into shardings."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from jaxengine.device.layers.schemes.coded import Coding, is_coded
from jaxengine.device.weights.checkpoint import OrbaxCheckpoint
from jaxengine.device.weights.placement import place
from jaxengine.device.weights.problems import Problems
from jaxengine.device.weights.report import Progress, Tracker
from jaxengine.device.weights.rules import Array, Made
from jaxengine.errors import CheckpointError
from pallas_kernels.coded_matmul import coding
from pallas_kernels.scaled_matmul.packed import is_packed, packed, plain_shape

MIN_CHUNK_BYTES = 1 << 20
MAX_CHUNKS = 64
"""Chunks per array. Orbax makes them near square: a device that wants a part along either axis reads little more."""


def save(path: Path, arrays: Mapping[str, jax.Array]) -> None:
    """Write `arrays` into the new directory `path`."""
    save_args = {
        name: ocp.SaveArgs(chunk_byte_size=max(MIN_CHUNK_BYTES, array.nbytes // MAX_CHUNKS))
        for name, array in arrays.items()
    }
    # Uncompressed: weights shrink by a third at most, and decoding takes longer than reading them from a local disk.
    with _checkpointer(use_compression=False) as checkpointer:
        checkpointer.save(path.absolute(), args=ocp.args.PyTreeSave(dict(arrays), save_args=save_args))


def restore(
    checkpoint: OrbaxCheckpoint, parameters: Mapping[str, jax.ShapeDtypeStruct], *, progress: Progress | None = None
) -> dict[str, jax.Array]:
    """Read every parameter into its dtype and sharding, many at a time. Of those that are packed plain ones are stored.

    Orbax holds a multiple of what it reads at once: chunks as stored, chunks decoded, the array put together. To keep the
    loader's bound the large arrays are read one by one, before the others, and those together as a quarter of the largest.

    Raises:
        CheckpointError: the checkpoint's parameters are not the model's (all differences are listed), or cannot be read.
    """
    remade = {path: remake for path, spec in parameters.items() if (remake := _remade(spec)) is not None}
    wanted, parameters = parameters, {**parameters, **{path: plain for path, (plain, _) in remade.items()}}
    _check(checkpoint, parameters)
    stored = {
        path: math.prod(shape) * np.dtype(dtype).itemsize for path, (shape, dtype) in checkpoint.parameters.items()
    }
    tracker = Tracker(list(stored.values()), progress)
    largest = max(stored.values())
    large = {path: spec for path, spec in parameters.items() if stored[path] > largest // 4}
    small = {path: spec for path, spec in parameters.items() if path not in large}
    arrays: dict[str, jax.Array] = {}
    for group, limit in ((large, largest), (small, largest // 4)):
        arrays |= _restore_group(checkpoint.path, group, bytes_at_once=limit)
        tracker.add(sum(stored[path] for path in group), num_tensors=len(group))
    for path, (_, made) in remade.items():
        arrays[path] = place(made(np.asarray(arrays[path])), wanted[path])
    return {path: arrays[path] for path in parameters}


def _remade(spec: jax.ShapeDtypeStruct) -> tuple[jax.ShapeDtypeStruct, Callable[[Array], Array | Made]] | None:
    """Of a packed or coded matrix: what a checkpoint has of it, and how it is made of that."""
    if spec.dtype == np.uint8 and is_packed(spec):
        return jax.ShapeDtypeStruct(plain_shape(spec.shape), spec.dtype, sharding=spec.sharding), packed
    if is_coded(spec):
        shape = coding.plain_shape(spec.shape)
        assert shape is not None
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=spec.sharding), partial(Coding, shape=spec.shape)
    return None


def _restore_group(
    path: Path, parameters: Mapping[str, jax.ShapeDtypeStruct], *, bytes_at_once: int
) -> dict[str, jax.Array]:
    first = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    restore_args = {
        name: ocp.ArrayRestoreArgs(sharding=spec.sharding or first, dtype=spec.dtype, global_shape=spec.shape)
        for name, spec in parameters.items()
    }
    # In units of 10^9 bytes, and strictly more than any one read.
    with _checkpointer(restore_concurrent_gb=(bytes_at_once + 1024) / 1e9) as checkpointer:
        try:
            arrays: dict[str, jax.Array] = checkpointer.restore(
                path.absolute(),
                args=ocp.args.PyTreeRestore(item=dict(parameters), restore_args=restore_args, partial_restore=True),
            )
        except Exception as error:  # Orbax raises it bare for files that it cannot read
            raise CheckpointError(f"{path} cannot be restored ({error}); convert the model again") from error
    for name, spec in parameters.items():
        if spec.format.layout is not None:  # Orbax knows nothing of layouts
            arrays[name] = jax.device_put(arrays[name], spec.format)
        arrays[name].block_until_ready()
    return arrays


@contextmanager
def _checkpointer(**options: Any) -> Iterator[Any]:
    with warnings.catch_warnings():
        # Orbax deprecates parts of itself from within itself; nothing a caller could act on.
        warnings.simplefilter("ignore", DeprecationWarning)
        checkpointer = ocp.Checkpointer(ocp.PyTreeCheckpointHandler(**options))
        try:
            yield checkpointer
        finally:
            checkpointer.close()


def _check(checkpoint: OrbaxCheckpoint, parameters: Mapping[str, jax.ShapeDtypeStruct]) -> None:
    problems = Problems()
    for path in checkpoint.parameters.keys() - parameters.keys():
        problems.add("parameters that the model has not", path)
    for path, spec in parameters.items():
        if path not in checkpoint.parameters:
            problems.add("parameters that the checkpoint has not", path)
        elif checkpoint.parameters[path][0] != spec.shape:
            stored = list(checkpoint.parameters[path][0])
            problems.add("parameters of another shape", path, f"{stored} stored, the model wants {list(spec.shape)}")
    problems.raise_any(
        f"{checkpoint.path} does not fit the model; a converted checkpoint holds each KV head once, so with more devices than "
        "KV heads load the safetensors checkpoint instead, and matrices as it was converted with --quantization "
        "and --lm-head-dtype"
    )
