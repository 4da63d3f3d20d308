"""What a model is before it runs: its files, dtype and devices, and abstract parameters laid out over them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxengine.contract.cache_traits import CacheTraits
from jaxengine.contract.media import Modality
from jaxengine.device.layers.adapters import AdapterSpec
from jaxengine.device.layers.keeps import Keeps, Paged
from jaxengine.device.layers.schemes.by_path import PLAIN, TOWER, Schemes
from jaxengine.device.layers.schemes.coded import is_coded
from jaxengine.device.layers.schemes.packed import PACKED
from jaxengine.device.layers.sharding import ONE_DEVICE, Layout, one_device, share_layers
from jaxengine.device.models.config.decoder_config import DecoderConfig
from jaxengine.device.models.parameters import ModelGraph, abstract_model
from jaxengine.device.models.pipeline import Pipeline, pipeline_of
from jaxengine.device.runtime.cache_layout import cache_traits
from jaxengine.device.runtime.target import LOCAL, platform_of, select_devices
from jaxengine.device.weights.adapter_packing import has_slots
from jaxengine.device.weights.cache_scales import cache_scale_paths
from jaxengine.device.weights.dtype import resolve_dtype
from jaxengine.device.weights.rules import Ignore, Rule
from jaxengine.errors import ConfigError
from jaxengine.media.processors import Most
from jaxengine.options.config import EngineConfig
from jaxengine.options.stages import split_layers
from jaxengine.startup.adapters import plan_adapters
from jaxengine.startup.draft_plan import DraftPlan
from jaxengine.startup.kv_cache import choose_kv_dtype
from jaxengine.startup.media_limits import with_tower
from jaxengine.startup.model_files import ModelFiles, find_model, read_model
from jaxengine.startup.quantization import describe_matrices, head_path
from jaxengine.startup.roofline import Roofline, Speed, num_numbers
from jaxengine.startup.weights_on_host import keep_on_host
from pallas_kernels import ATTENTION_BACKENDS, PACKED_TILE, QUANTISED_CACHES
from xla_cache.target import Target

logger = logging.getLogger("jaxengine")

LANES = 128
"""Numbers in a row of a TPU's vectors."""


@dataclass(frozen=True, kw_only=True)
class ModelPlan(ModelFiles):
    """A model before any of its weights are read: abstract parameters, and where they will live.

    `native` names the library of custom calls that programs on this machine's CPU use (`startup/native.py`). `draft` is what
    drafts for it on the device. `items` are the most that each of what prompts may show is. With several stages
    `graph` and `layout` are those of the last one of the `pipeline`.
    """

    graph: ModelGraph
    parameters: dict[str, jax.ShapeDtypeStruct]
    dtype: np.dtype[Any]
    kv_dtype: np.dtype[Any]
    layout: Layout
    platform: str
    target: Target
    devices: list[Any]
    adapters: AdapterSpec | None = None
    native: str | None = None
    draft: DraftPlan | None = None
    pipeline: Pipeline | None = None
    items: Mapping[Modality, Most] = field(default_factory=dict)

    @property
    def stages(self) -> tuple[range, ...]:
        """The layers of each stage; empty where there is one."""
        return () if self.pipeline is None else tuple(part.layers for part in self.pipeline.parts)

    def calling(self, native: str | None, *, codes: bool = False) -> ModelPlan:
        """The same whose programs call this library, for which matrices of 4 bits are packed, and plain ones of an encoder.

        With `codes` it multiplies with coded matrices, and plain ones of bfloat16 are kept so. Matrices that have adapters beside
        them stay plain, and all that a draft may share.
        """
        called, narrow = replace(self, native=native), self.dtype == jnp.bfloat16 and self.draft is None
        if native is None:
            return called
        schemes = self.schemes
        if self.adapters is None and self.config.whole_rows and schemes == PLAIN:
            schemes = replace(schemes, layers=PACKED)
        elif self.adapters is None and narrow and codes and not self.config.whole_rows:
            schemes = schemes.coded(head_path(tied=self.config.tie_word_embeddings))
        if schemes != self.schemes:
            called = called._kept_by(schemes)
        return replace(called, parameters=schemes.packed(called.parameters)) if narrow else called

    def _kept_by(self, schemes: Schemes) -> ModelPlan:
        graph, parameters = abstract_model(
            self.model_class,
            self.config,
            dtype=self.dtype,
            layout=self.layout,
            platform=self.platform,
            schemes=schemes,
            kv_dtype=self.kv_dtype,
        )
        return replace(self, schemes=schemes, graph=graph, parameters=parameters)

    @property
    def codes(self) -> bool:
        """Whether some matrices are coded while they are loaded."""
        return any(map(is_coded, self.parameters.values()))

    @property
    def rules(self) -> tuple[Rule | Ignore, ...]:
        """The weight table of a checkpoint as the family has it."""
        return self.schemes.table(self.weights, self.parameters)

    @property
    def matrices_and_vectors(self) -> dict[str, jax.ShapeDtypeStruct]:
        """The parameters but for scales of the cache: what a weight table is of."""
        scales = set(cache_scale_paths(self.parameters))
        return {path: struct for path, struct in self.parameters.items() if path not in scales}

    @property
    def cache(self) -> tuple[Keeps, ...]:
        """What each layer keeps of a sequence, and behind the model's own those of its draft."""
        return self.graph.cache if self.draft is None else self.draft.behind(self.graph.cache)

    @property
    def traits(self) -> CacheTraits:
        """What follows for scheduling from what layers keep of a sequence."""
        return cache_traits(self.cache)

    @property
    def num_parameters(self) -> int:
        return sum(map(num_numbers, self.matrices_and_vectors.values()))

    @property
    def precision(self) -> str:
        """The dtype, and what matrices are where they are not of it."""
        head = self.schemes.of(head_path(tied=self.config.tie_word_embeddings))
        named = {"matrices": self.schemes.name, "head": None if head.dtype == "model" else head.dtype}
        return ", ".join([f"{self.dtype}", *(f"{what} in {name}" for what, name in named.items() if name is not None)])

    @property
    def fewer_bytes(self) -> tuple[str, ...]:
        """Options under which the weights would take fewer bytes than they do."""
        plain_head = (
            self.generates and self.schemes.of(head_path(tied=self.config.tie_word_embeddings)).dtype == "model"
        )
        head = ("--lm-head-dtype int8 or int4",) if plain_head else ()
        if self.schemes.name is not None:
            return (*(("--quantization int4",) if self.schemes.name == "int8" else ()), *head)
        half = () if self.dtype.itemsize == 2 else ("--dtype bfloat16",)
        return (*half, "--quantization int8 or int4", *head)

    def roofline(self, speed: Speed) -> Roofline:
        """The least time of this model's steps on such devices."""
        experts = self.config.experts
        of_texts = {path: struct for path, struct in self.parameters.items() if not path.startswith(TOWER)}
        return Roofline.of(
            of_texts,
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

    Raises:
        ConfigError, CheckpointError: no such model or devices, or options that contradict them.
    """
    parallel = config.parallel
    devices = select_devices(parallel.tensor_parallel_size, target, stages=parallel.pipeline_parallel_size)
    platform = platform_of(devices)
    _check_backend(config.compilation.attention_backend, platform)
    files, items = with_tower(read_model(config.model, config_alone=not weights), config)
    dtype = resolve_dtype(config.model.dtype, checkpoint=files.config.dtype, platform=platform)
    kv_dtype = choose_kv_dtype(config.cache.kv_cache_dtype, files.config_json, dtype)
    adapters = plan_adapters(config.lora)

    def make(layout: Layout) -> tuple[ModelGraph, dict[str, jax.ShapeDtypeStruct]]:
        return abstract_model(
            files.model_class,
            files.config,
            dtype=dtype,
            layout=layout,
            platform=platform,
            schemes=files.schemes,
            kv_dtype=kv_dtype,
            adapters=adapters,
            adapted=has_slots(files.weights, config.lora.lora_target_modules),
        )

    layouts = _lay_out(files.config, config, devices, platform)
    pipeline = None
    if len(layouts) == 1:
        graph, parameters = make(layouts[0])
    else:
        layers = split_layers(files.config.num_layers, len(layouts), parallel.layer_partition)
        pipeline = pipeline_of(list(zip(layers, layouts, strict=True)), make)
        graph, parameters = pipeline.parts[-1].graph, pipeline.parameters
    plan = ModelPlan(
        **vars(files),
        graph=graph,
        parameters=keep_on_host(parameters, config.model.cpu_offload_gb, platform=platform, here=target is LOCAL),
        dtype=dtype,
        kv_dtype=kv_dtype,
        layout=layouts[-1],
        platform=platform,
        target=target,
        devices=devices,
        adapters=adapters,
        pipeline=pipeline,
        items=items,
    )
    _check_cache(plan, config)
    if not weights or config.model.load_format == "dummy":
        return plan
    # only now: the files of a model that is refused are not fetched
    return replace(plan, source=find_model(config.model, plan.source.commit, weights=True))


def _check_backend(backend: str, platform: str) -> None:
    if backend not in ATTENTION_BACKENDS:
        raise ConfigError(f"attention_backend must be one of {', '.join(ATTENTION_BACKENDS)}, got {backend!r}")
    if backend in ("tpu", "gpu") and platform != backend:
        raise ConfigError(
            f"attention_backend {backend!r} runs on {backend.upper()}s, and this engine is for the {platform}; use 'auto'"
        )


def _lay_out(model_config: DecoderConfig, config: EngineConfig, devices: Sequence[Any], platform: str) -> list[Layout]:
    """How the devices of each stage share each layer.

    An accelerator has a mesh of one device too: its programs are the same compiled there and compiled ahead elsewhere.
    """
    whole = _whole_experts(model_config, config, platform)
    size, stages = config.parallel.tensor_parallel_size, config.parallel.pipeline_parallel_size
    if size == 1 and platform == "cpu":
        return [ONE_DEVICE] if stages == 1 else [one_device(device) for device in devices]
    return [share_layers(devices[stage * size : (stage + 1) * size], expert_parallel=whole) for stage in range(stages)]


def _check_cache(plan: ModelPlan, config: EngineConfig) -> None:
    """Refuse options that what the model keeps of a sequence does not allow."""
    if plan.platform == "tpu" and plan.kv_dtype in QUANTISED_CACHES:
        _check_packed_latents(plan.graph, config, plan.kv_dtype)
    if config.scheduler.speculation is not None and not plan.generates:
        raise ConfigError(
            "speculative_config is for models that generate, and this one pools (runner, or what config.json says); leave the "
            "option out"
        )
    if config.scheduler.speculation is not None and not plan.traits.rewinds:  # only a sequence's latest state is kept
        raise ConfigError(
            "speculative_config is not built for models that keep a state of each sequence beside its pages, as they cannot go "
            "back to the token before a wrong draft; leave the option out"
        )


def _check_packed_latents(graph: ModelGraph, config: EngineConfig, kv_dtype: Any) -> None:
    """Latent vectors of 8 bits are written by a TPU's kernel, to whole tiles: XLA would copy all of them in every step."""
    if not any(isinstance(kept, Paged) and kept.latent for keeps in graph.cache for kept in keeps):
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


def _whole_experts(model_config: DecoderConfig, config: EngineConfig, platform: str) -> bool:
    """Whether devices have whole experts, and not a part of each.

    A TPU's kernel for products of groups takes matrices whose axes fill its vectors. Others are copied, all of them and in every
    step (`jaxengine plan --compile` shows what that costs).

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
