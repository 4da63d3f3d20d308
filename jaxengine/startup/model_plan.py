"""What a model is before it runs: files, configuration, dtype, devices, abstract parameters; and then its weights."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxengine.contract.batch import CacheTraits
from jaxengine.device.layers.schemes.by_path import Schemes
from jaxengine.device.layers.schemes.dense import DENSE
from jaxengine.device.layers.sharding import ONE_DEVICE, Layout, share_layers
from jaxengine.device.models.config.decoder_config import DecoderConfig
from jaxengine.device.models.config.hf import apply_overrides
from jaxengine.device.models.interface import CausalLM
from jaxengine.device.models.parameters import ModelGraph, abstract_model
from jaxengine.device.models.registry import has_head, read_config
from jaxengine.device.models.registry import resolve as resolve_architecture
from jaxengine.device.runtime.cache_layout import cache_traits
from jaxengine.device.runtime.target import LOCAL, platform_of, select_devices
from jaxengine.device.weights.cache_scales import cache_scale_names, cache_scale_paths, read_cache_scales
from jaxengine.device.weights.checkpoint import OrbaxCheckpoint, TensorCheckpoint, open_checkpoint
from jaxengine.device.weights.dtype import resolve_dtype
from jaxengine.device.weights.dummy import RandomTensors, own_rules
from jaxengine.device.weights.loader import check, load
from jaxengine.device.weights.placement import place
from jaxengine.device.weights.report import LoadReport
from jaxengine.device.weights.rules import Array, Ignore, Rule
from jaxengine.device.weights.source import ResolvedModel, resolve
from jaxengine.errors import CheckpointError, ConfigError
from jaxengine.options.config import EngineConfig
from jaxengine.startup.dynamic_rope import settle_dynamic_rope
from jaxengine.startup.kv_cache import choose_kv_dtype
from jaxengine.startup.progress import Progress
from jaxengine.startup.quantization import choose_head, choose_schemes, describe_matrices, head_path, unpacked
from jaxengine.startup.roofline import Roofline, Speed, num_numbers
from jaxengine.text.pooling_config import PoolingDefaults
from jaxengine.text.settings import read_json_object
from pallas_kernels import ATTENTION_BACKENDS, PACKED_TILE, QUANTISED_CACHES
from xla_cache.target import Target

logger = logging.getLogger("jaxengine")

LANES = 128
"""Numbers in a row of a TPU's vectors."""


@dataclass(frozen=True)
class ModelPlan:
    """A model before any of its bytes are read: class, configuration, abstract parameters and where they will live.

    `config_json` is what everything that depends on config.json is made of: read once, with `hf_overrides` merged in.
    `generates` is false for a model of embeddings and nothing else, which has no head of its own. `native` names the library
    of custom calls that programs on this machine's CPU use (`startup/native.py`).
    """

    source: ResolvedModel
    config_json: Mapping[str, Any]
    model_class: type[CausalLM]
    config: DecoderConfig
    graph: ModelGraph
    parameters: dict[str, jax.ShapeDtypeStruct]
    dtype: np.dtype[Any]
    kv_dtype: np.dtype[Any]
    layout: Layout
    platform: str
    target: Target
    devices: list[Any]
    pooling: PoolingDefaults
    generates: bool
    schemes: Schemes
    native: str | None = None

    @property
    def rules(self) -> tuple[Rule | Ignore, ...]:
        """The weight table of a checkpoint as the family has it."""
        return self.schemes.table(self.model_class.WEIGHTS, self.parameters)

    @property
    def matrices_and_vectors(self) -> dict[str, jax.ShapeDtypeStruct]:
        """The parameters but for scales of the cache: what a weight table is of."""
        scales = set(cache_scale_paths(self.parameters))
        return {path: struct for path, struct in self.parameters.items() if path not in scales}

    @property
    def traits(self) -> CacheTraits:
        """What follows for scheduling from what layers keep of a sequence."""
        return cache_traits(self.graph.cache)

    @property
    def num_parameters(self) -> int:
        return sum(map(num_numbers, self.matrices_and_vectors.values()))

    @property
    def precision(self) -> str:
        """The dtype, and what matrices are where they are not of it."""
        head = self.schemes.of(head_path(tied=self.config.tie_word_embeddings))
        named = {"matrices": self.schemes.name, "head": None if head is DENSE else head.dtype}
        return ", ".join([f"{self.dtype}", *(f"{what} in {name}" for what, name in named.items() if name is not None)])

    @property
    def fewer_bytes(self) -> tuple[str, ...]:
        """Options under which the weights would take fewer bytes than they do."""
        plain_head = self.generates and self.schemes.of(head_path(tied=self.config.tie_word_embeddings)) is DENSE
        head = ("--lm-head-dtype int8",) if plain_head else ()
        if self.schemes.name is not None:
            return (*(("--quantization int4",) if self.schemes.name == "int8" else ()), *head)
        half = () if self.dtype.itemsize == 2 else ("--dtype bfloat16",)
        return (*half, "--quantization int8 or int4", *head)

    def roofline(self, speed: Speed) -> Roofline:
        """The least time of this model's steps on such devices."""
        experts = self.config.experts
        return Roofline.of(
            self.parameters,
            speed,
            num_devices=len(self.devices),
            chosen=0.0 if experts is None else experts.routing.chosen / experts.count,
        )

    def describe(self, *, random_weights: bool) -> str:
        """One line for the log."""
        named = "embedded model (none was named)" if self.source.origin == "embedded" else self.source.name
        weights = "random weights" if random_weights else "weights"
        return (
            f"{named}: {self.model_class.__name__}, {self.num_parameters / 1e6:.1f} M parameters, "
            f"{weights} in {self.precision}, "
            f"on {len(self.devices)} x {self.devices[0].device_kind}"
        )

    def describe_matrices(self) -> str | None:
        """Another line, of what is quantised; None where nothing is."""
        return describe_matrices(self.parameters, self.schemes, self.dtype)


def plan_model(config: EngineConfig, *, weights: bool = True, target: Target = LOCAL) -> ModelPlan:
    """Read what a model is, without its weights: files, configuration, dtype, devices of the target, abstract parameters.

    `weights` says whether a model on the hub is fetched whole, or its small files only.
    """
    options = config.model
    backend = config.compilation.attention_backend
    if backend not in ATTENTION_BACKENDS:
        raise ConfigError(f"attention_backend must be one of {', '.join(ATTENTION_BACKENDS)}, got {backend!r}")
    random = options.load_format == "dummy"
    if not weights and options.model is not None and Path(options.model).is_file():
        source = ResolvedModel(Path(options.model), options.model, "directory")  # a config.json is all that is needed
    else:
        source = _find(config, options.revision, weights=False)
    pooling = PoolingDefaults.load(source.path)
    values: Mapping[str, Any] = apply_overrides(read_config_json(source.path), options.hf_overrides)
    values = settle_dynamic_rope(values, options.max_model_len)
    values, generates = settle_head(values, pooling, only_embeds=options.only_embeds)
    model_class = resolve_architecture(values)
    size = config.parallel.tensor_parallel_size
    devices = select_devices(size, target)
    platform = platform_of(devices)
    schemes = choose_schemes(options.quantization, values, model_class)
    if backend in ("tpu", "gpu") and platform != backend:
        raise ConfigError(
            f"attention_backend {backend!r} runs on {backend.upper()}s, and this engine is for the {platform}; use 'auto'"
        )
    model_config = read_config(model_class, values)
    if options.lm_head_dtype != "auto" and not generates:
        raise ConfigError(
            f"lm_head_dtype={options.lm_head_dtype!r} was asked for, and this model only computes embeddings; leave the option "
            "out, or start it with --runner generate if it has a head"
        )
    schemes = choose_head(schemes, options.lm_head_dtype, tied=model_config.tie_word_embeddings)
    if weights and not random:  # only now: the files of a model that is refused are not fetched
        source = _find(config, source.commit, weights=True)
    expert_parallel = _whole_experts(model_config, config, platform)
    dtype = resolve_dtype(options.dtype, checkpoint=model_config.dtype, platform=platform)
    kv_dtype = choose_kv_dtype(config.cache.kv_cache_dtype, values, dtype)
    # An accelerator has a mesh of one device too: its programs are the same compiled there and compiled ahead elsewhere.
    alone = size == 1 and platform == "cpu"
    layout = ONE_DEVICE if alone else share_layers(devices, expert_parallel=expert_parallel)
    graph, parameters = abstract_model(
        model_class, model_config, dtype=dtype, layout=layout, platform=platform, schemes=schemes, kv_dtype=kv_dtype
    )
    if platform == "tpu" and kv_dtype in QUANTISED_CACHES:
        _check_packed_latents(graph, config, kv_dtype)
    plan = ModelPlan(
        source,
        values,
        model_class,
        model_config,
        graph,
        parameters,
        dtype,
        kv_dtype,
        layout,
        platform,
        target,
        devices,
        pooling,
        generates,
        schemes,
    )
    if config.scheduler.speculation is not None and not plan.traits.rewinds:  # only a sequence's latest state is kept
        raise ConfigError(
            "speculative_config is not built for models that keep a state of each sequence beside its pages, as they cannot go "
            "back to the token before a wrong draft; leave the option out"
        )
    return plan


def _check_packed_latents(graph: ModelGraph, config: EngineConfig, kv_dtype: Any) -> None:
    """Latent vectors of 8 bits are written by a TPU's kernel, to whole tiles: XLA would copy all of them in every step."""
    if not any(getattr(kept, "latent", False) for kept in graph.cache):
        return
    page_size, backend = config.cache.page_size, config.compilation.attention_backend
    if page_size is not None and page_size % PACKED_TILE:
        raise ConfigError(
            f"page_size is {page_size}; of a cache of latent vectors in {kv_dtype} a TPU's pages have a multiple of "
            f"{PACKED_TILE} tokens: leave page_size out, or use kv_cache_dtype='bfloat16'"
        )
    if backend not in ("auto", "tpu"):
        raise ConfigError(
            f"attention_backend {backend!r} would copy a TPU's cache of latent vectors in {kv_dtype} in every step; "
            "use 'auto', or kv_cache_dtype='bfloat16'"
        )


def _find(config: EngineConfig, revision: str | None, *, weights: bool) -> ResolvedModel:
    options = config.model
    return resolve(
        options.model,
        revision=revision,
        token=options.hf_token,
        cache_dir=options.download_dir,
        weights=weights,
        load_format=options.load_format,
    )


def _whole_experts(model_config: DecoderConfig, config: EngineConfig, platform: str) -> bool:
    """Whether devices have whole experts, and not a part of each.

    A TPU's kernel for products of groups takes matrices whose axes fill its vectors. Others are copied, all of them and in every
    step: of Qwen3-30B-A3B, 768 channels an expert, a step of 8 tokens is estimated at 3.6 million cycles on v6e-4 with whole
    experts and at 118.6 with parts of 192 channels (`jaxengine plan`).

    Raises:
        ConfigError: it is asked for, and the model has no experts.
    """
    experts, size = model_config.experts, config.parallel.tensor_parallel_size
    if experts is None:
        if config.parallel.enable_expert_parallel:
            raise ConfigError("enable_expert_parallel is for models with experts, and this one has none; leave it out")
        return False
    if config.parallel.enable_expert_parallel or platform != "tpu" or (experts.inner // size) % LANES == 0:
        return config.parallel.enable_expert_parallel
    whole = size > 1 and experts.count % size == 0
    if whole:
        logger.info(
            "each device has %d whole experts: a part of each would be %d channels, and a TPU wants multiples of %d",
            experts.count // size,
            experts.inner // size,
            LANES,
        )
    return whole


def settle_head(
    values: Mapping[str, Any], pooling: PoolingDefaults, *, only_embeds: bool | None = None
) -> tuple[dict[str, Any], bool]:
    """config.json for a model with a head or without one, and whether it can generate.

    Embedding models are published without a head whether their embeddings are tied or not; tied, they need none.

    Args:
        values: the contents of config.json.
        pooling: what the files beside it say.
        only_embeds: whether the model is for embeddings and nothing else; None: its files and its architecture's name decide.

    Raises:
        ConfigError: it is, and its embeddings are not built.
    """
    if only_embeds is None:
        only_embeds = pooling.described or not has_head(values)
    if not only_embeds:
        return dict(values), True
    if pooling.unsupported is not None:
        raise ConfigError(
            f"embeddings of this model are not built: {pooling.unsupported}. "
            "If it can continue texts, and that is what you want, give runner='generate'."
        )
    return {**values, "tie_word_embeddings": True}, False


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


def _plain_parameters(model: ModelPlan) -> dict[str, jax.ShapeDtypeStruct]:
    """The parameters as they would be without a scheme and without scales of the cache."""
    _, parameters = abstract_model(
        model.model_class, model.config, dtype=model.dtype, layout=model.layout, platform=model.platform
    )
    return parameters


def read_config_json(directory: Path) -> dict[str, Any]:
    """The contents of a checkpoint directory's config.json (or of that file itself).

    Raises:
        CheckpointError: there is none, or it is not a JSON object.
    """
    path = directory if directory.is_file() else directory / "config.json"
    if not path.is_file():
        raise CheckpointError(f"{directory} has no config.json; name a Hugging Face checkpoint directory or hub id")
    values = read_json_object(path)
    beside = path.with_name("hf_quant_config.json")  # where NVIDIA's ModelOpt says that weights are quantised
    if "quantization_config" not in values and beside.is_file():
        values["quantization_config"] = {"quant_method": "modelopt", **read_json_object(beside)}
    return values
