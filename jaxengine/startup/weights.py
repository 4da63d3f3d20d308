"""A model's weights, once it is planned: the checkpoint checked against it, then read and placed on its devices."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import jax
import numpy as np

from jaxengine.contract.batch import Weights
from jaxengine.device.models.parameters import abstract_model
from jaxengine.device.weights.cache_scales import cache_scale_names, cache_scale_paths, read_cache_scales
from jaxengine.device.weights.checkpoint import OrbaxCheckpoint, TensorCheckpoint, open_checkpoint
from jaxengine.device.weights.dummy import RandomTensors, own_rules
from jaxengine.device.weights.loader import check, load
from jaxengine.device.weights.placement import place
from jaxengine.device.weights.report import LoadReport
from jaxengine.device.weights.rules import Array
from jaxengine.errors import CheckpointError
from jaxengine.options.config import EngineConfig
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
    checkpoint = unpacked(stored, model.schemes, model.model_class.WEIGHTS)
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


def load_parameters(model: ModelPlan, opened: OpenedWeights, seed: int, progress: Progress) -> dict[str, jax.Array]:
    """Read (or make up) the weights, each placed on its devices as it is read. Cache scales that no checkpoint has are 1."""
    reports: list[LoadReport] = []
    checkpoint, wanted = opened.checkpoint, model.matrices_and_vectors
    with progress.phase("load"):
        if checkpoint is None:
            plain = _plain_parameters(model)
            tensors = RandomTensors(plain, seed=seed)
            rules = model.schemes.table(own_rules(plain), wanted, plain=True)
            arrays = load(tensors, rules, wanted, model.config, progress=reports.append)
        else:
            arrays = load(checkpoint, model.rules, wanted, model.config, progress=reports.append)
        for path in cache_scale_paths(model.parameters):
            struct = model.parameters[path]
            arrays[path] = place(opened.cache_scales.get(path, np.ones(struct.shape, np.float32)), struct)
        arrays = {path: arrays[path] for path in model.parameters}
        jax.block_until_ready(list(arrays.values()))
    progress.say("load", str(reports[-1]) if reports else "nothing to read")
    return arrays


def read_weights(config: EngineConfig, model: ModelPlan, path: str) -> Weights:
    """The weights of another checkpoint of a model that has been started. The devices have to have room for both.

    Scales of a quantised cache are among them where the checkpoint has them; scales that were measured stay.

    Raises:
        CheckpointError: there is no such checkpoint, or its names and shapes are not those of the model.
    """
    directory = Path(path).expanduser()
    if not directory.is_dir():
        raise CheckpointError(f"{path} is no directory with a checkpoint, from which weights could be read")
    source = replace(model.source, path=directory, name=path, origin="directory", commit=None)
    load_format = "auto" if config.model.load_format == "dummy" else config.model.load_format
    config = replace(config, model=replace(config.model, load_format=load_format))
    other = replace(model, source=source)
    opened = open_weights(other, config)
    arrays = load_parameters(other, opened, config.model.seed, Progress())
    ours = set(cache_scale_paths(model.parameters)) - opened.cache_scales.keys()
    return Weights({name: np.asarray(array) for name, array in arrays.items() if name not in ours})


def _plain_parameters(model: ModelPlan) -> dict[str, jax.ShapeDtypeStruct]:
    """The parameters as they would be without a scheme and without scales of the cache."""
    _, parameters = abstract_model(
        model.model_class, model.config, dtype=model.dtype, layout=model.layout, platform=model.platform
    )
    return parameters
