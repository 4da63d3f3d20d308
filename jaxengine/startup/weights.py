"""A model's weights, once it is planned: the checkpoint checked against it, then read and placed on its devices."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxengine.contract.runner import Checkpoint, Weights
from jaxengine.device.layers.schemes import is_numbers
from jaxengine.device.layers.schemes.dense import DENSE
from jaxengine.device.models.parameters import abstract_model
from jaxengine.device.models.pipeline import COPY_PREFIX
from jaxengine.device.runtime.draft_space import DRAFT_PREFIX
from jaxengine.device.runtime.transfer import elsewhere
from jaxengine.device.weights.cache_scales import cache_scale_names, cache_scale_paths, read_cache_scales
from jaxengine.device.weights.checkpoint import OrbaxCheckpoint, TensorCheckpoint, WithFolders, open_checkpoint
from jaxengine.device.weights.dummy import RandomTensors, is_stack, own_rules
from jaxengine.device.weights.loader import check, load
from jaxengine.device.weights.matching import targets_of
from jaxengine.device.weights.named_arrays import NamedArrays
from jaxengine.device.weights.on_demand import on_demand
from jaxengine.device.weights.placement import place
from jaxengine.device.weights.report import LoadReport
from jaxengine.device.weights.rules import Array, Ignore, Rule
from jaxengine.errors import CheckpointError, ConfigError, RequestError
from jaxengine.options.config import EngineConfig
from jaxengine.startup.draft_plan import DraftPlan
from jaxengine.startup.model_plan import ModelPlan
from jaxengine.startup.progress import Progress
from jaxengine.startup.quantization import unpacked

logger = logging.getLogger("jaxengine")


@dataclass(frozen=True)
class OpenedWeights:
    """The checkpoint, None for random weights, and the scales of a quantised cache by parameter, where it has them."""

    checkpoint: TensorCheckpoint | OrbaxCheckpoint | None
    cache_scales: Mapping[str, Array]


def open_weights(model: ModelPlan, config: EngineConfig) -> OpenedWeights:
    """The checkpoint, its names and shapes checked against the model."""
    if config.model.load_format == "dummy":
        return OpenedWeights(None, {})
    stored = open_checkpoint(model.source.path, load_format=config.model.load_format)
    if isinstance(stored, OrbaxCheckpoint) and model.pipeline is not None:
        refuse_hosts_of_stages({part.layout.hosts for part in model.pipeline.parts}, model.source.name)
    folders = () if model.config.pooler is None else model.config.pooler.folders
    if folders and not isinstance(stored, OrbaxCheckpoint):
        stored = WithFolders(stored, folders, load_format=config.model.load_format)
    checkpoint = unpacked(stored, model.schemes, model.weights)
    check(checkpoint, model.rules, model.matrices_and_vectors, model.config)
    if isinstance(stored, OrbaxCheckpoint):
        return OpenedWeights(checkpoint, {})
    shapes = {path: model.parameters[path].shape[0] for path in cache_scale_paths(model.parameters)}
    if not shapes and (unused := cache_scale_names(stored.tensors)):
        logger.warning(
            "%d scales of a quantised KV cache are not used (%s, ...): it is kept in %s (kv_cache_dtype)",
            len(unused),
            unused[0],
            model.kv_dtype,
        )
    return OpenedWeights(checkpoint, read_cache_scales(stored, shapes, model.config) if shapes else {})


def refuse_hosts_of_stages(hosts: Set[frozenset[int]], name: str) -> None:
    """Refuse a checkpoint of Orbax, which reads no arrays of which a host has no part, for stages of several hosts.

    Raises:
        ConfigError: these are several.
    """
    if len(hosts) > 1:
        raise ConfigError(
            f"{name} was written by Orbax, which is not built for pipeline stages of several hosts; load the checkpoint that it "
            "was converted of (safetensors), or leave pipeline_parallel_size out"
        )


def load_parameters(model: ModelPlan, opened: OpenedWeights, seed: int, progress: Progress) -> dict[str, jax.Array]:
    """Read (or make up) the weights, each placed on its devices as it is read. Cache scales that no checkpoint has are 1."""
    reports: list[LoadReport] = []
    checkpoint, wanted = opened.checkpoint, _read_here(model)
    with progress.phase("load"):
        if checkpoint is None:
            tensors, rules = _random(model, seed)
            arrays = load(tensors, rules, wanted, model.config, progress=reports.append)
        else:
            arrays = load(checkpoint, model.rules, wanted, model.config, progress=reports.append)
        for path in cache_scale_paths(model.parameters):
            struct = model.parameters[path]
            arrays[path] = place(opened.cache_scales.get(path, np.ones(struct.shape, np.float32)), struct)
        arrays = {path: arrays[path] for path in model.parameters}
        arrays |= _copies(model, arrays)
        jax.block_until_ready(list(arrays.values()))
    progress.say("load", str(reports[-1]) if reports else "nothing to read")
    return arrays


def _read_here(model: ModelPlan) -> dict[str, jax.ShapeDtypeStruct]:
    """What tensors are read for: the parameters, or what this host has of one where the first stage has a copy."""
    copies = {} if model.pipeline is None else model.pipeline.copies
    here = {
        path.removeprefix(COPY_PREFIX): struct
        for path, struct in copies.items()
        if struct.sharding is not None and struct.sharding.addressable_devices and not _is_here(model, path)
    }
    return {**model.matrices_and_vectors, **here}


def _is_here(model: ModelPlan, copy: str) -> bool:
    """Whether this host has parts of what a parameter is a copy of."""
    sharding = model.parameters[copy.removeprefix(COPY_PREFIX)].sharding
    return sharding is None or bool(sharding.addressable_devices)


def _copies(model: ModelPlan, arrays: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """What the first stage has of the last one's parameters; where that one is elsewhere, also what stands for them."""
    made: dict[str, jax.Array] = {}
    for path, struct in ({} if model.pipeline is None else model.pipeline.copies).items():
        original = path.removeprefix(COPY_PREFIX)
        of_last = model.parameters[original]
        if struct.sharding is None or (struct.sharding.is_fully_addressable and _is_here(model, path)):
            made[path] = jax.device_put(arrays[original], struct.sharding)
        elif struct.sharding.addressable_devices:
            made[path], made[original] = arrays[original], elsewhere(of_last.shape, of_last.sharding, of_last.dtype)
        else:
            made[path] = elsewhere(struct.shape, struct.sharding, struct.dtype)
    return made


def load_draft(draft: DraftPlan, opened: OpenedWeights, seed: int, progress: Progress) -> dict[str, jax.Array]:
    """A draft's own weights, by their paths beside the model's."""
    loaded = load_parameters(draft.model, opened, seed, progress)
    return {DRAFT_PREFIX + path: loaded[path] for path in draft.space.own}


def read_weights(config: EngineConfig, model: ModelPlan, source: str | Mapping[str, Any] | None) -> Weights:
    """Other weights of a model that has been started: each is read, and quantised, when it is placed.

    `source` is a directory with a checkpoint, None that of the start, or arrays by the names of the checkpoint's tensors or of
    the model's parameters; of arrays some may be left out. Scales of a quantised cache are among them where the checkpoint has
    them; scales that were measured stay.

    Raises:
        CheckpointError: there is no such checkpoint, or names and shapes are not those of the model.
        RequestError: no arrays, or of a dtype that no checkpoint has.
    """
    if isinstance(source, Mapping):
        return Weights(_of_arrays(model, source))
    if source is None:
        return _of_checkpoint(config, model, None)
    directory = Path(source).expanduser()
    if not directory.is_dir():
        raise CheckpointError(f"{source} is no directory with a checkpoint, from which weights could be read")
    files = replace(model.source, path=directory, name=source, origin="directory", commit=None)
    load_format = "auto" if config.model.load_format == "dummy" else config.model.load_format
    config = replace(config, model=replace(config.model, load_format=load_format))
    return _of_checkpoint(config, replace(model, source=files), str(directory))


def _of_checkpoint(config: EngineConfig, model: ModelPlan, directory: str | None) -> Weights:
    opened, wanted = open_weights(model, config), model.matrices_and_vectors
    if opened.checkpoint is None:
        made = on_demand(*_random(model, config.model.seed), wanted, model.config)
    else:
        made = on_demand(opened.checkpoint, model.rules, wanted, model.config)
    return Weights({**made, **opened.cache_scales}, of=Checkpoint(directory))


def _of_arrays(model: ModelPlan, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters that are as the model has them are handed through; matrices that it quantises, and tensors, are made of."""
    if not arrays:
        raise RequestError("there are no arrays among the weights to use", param="weights")
    plain, wanted = _plain_parameters(model), model.matrices_and_vectors
    if arrays.keys() <= plain.keys() | wanted.keys():
        as_they_are = {path: array for path, array in arrays.items() if _is_as_kept(model, path, array)}
        tensors = NamedArrays(_tensors({path: arrays[path] for path in arrays.keys() - as_they_are.keys()}))
        rules = model.schemes.table(own_rules(plain), wanted, plain=True)
        return {**as_they_are, **_made(model, tensors, tensors, rules)}
    named = NamedArrays(arrays)
    checkpoint = unpacked(named, model.schemes, model.weights)
    assert not isinstance(checkpoint, OrbaxCheckpoint)
    return _made(model, checkpoint, named, model.rules)


def _made(
    model: ModelPlan, checkpoint: TensorCheckpoint, named: NamedArrays, rules: Sequence[Rule | Ignore]
) -> dict[str, Any]:
    """The parameters that tensors of a checkpoint make, which need not be all."""
    wanted = model.matrices_and_vectors
    targets = targets_of(list(checkpoint.tensors), rules, wanted, model.config)
    some = {path: struct for path, struct in wanted.items() if path in targets}
    return on_demand(checkpoint, rules, some, model.config, given=named.arrays)


def _is_as_kept(model: ModelPlan, path: str, array: Any) -> bool:
    """Whether an array of this path holds what the model keeps there, and is no matrix that it would quantise."""
    struct = model.matrices_and_vectors.get(path)
    if struct is None or tuple(array.shape) != struct.shape:
        return False
    return array.dtype == struct.dtype or not is_numbers(path) or model.schemes.of(path) is DENSE


def _tensors(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Plain parameters by the names that `own_rules` have for them: of those that are stacked each matrix is a tensor."""
    return {
        name: tensor
        for path, array in parameters.items()
        for name, tensor in (
            [(path, array)]
            if not is_stack(path, array.shape)
            else [(f"{path}.{number}", matrix.T) for number, matrix in enumerate(np.asarray(array))]
        )
    }


def _random(model: ModelPlan, seed: int) -> tuple[RandomTensors, Sequence[Rule | Ignore]]:
    """Random weights, and the table by which they are read."""
    plain = _plain_parameters(model)
    return RandomTensors(plain, seed=seed), model.schemes.table(
        own_rules(plain), model.matrices_and_vectors, plain=True
    )


def _plain_parameters(model: ModelPlan) -> dict[str, jax.ShapeDtypeStruct]:
    """The parameters as they would be without a scheme and without scales of the cache; of a draft those that are its own."""
    _, parameters = abstract_model(
        model.model_class, model.config, dtype=model.dtype, layout=model.layout, platform=model.platform
    )
    shared = getattr(model.model_class, "SHARED", ())
    return {path: struct for path, struct in parameters.items() if not path.startswith(shared)}
