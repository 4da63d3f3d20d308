"""What a start, a bundle, a plan and a replay of traffic begin with: options resolved to a model and its sizes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from jaxengine.device.runtime.target import DEFAULTS, LOCAL, PlatformDefaults, device_memory_bytes
from jaxengine.errors import ConfigError
from jaxengine.options.config import EngineConfig
from jaxengine.startup.bundle import check_context
from jaxengine.startup.draft_plan import plan_draft
from jaxengine.startup.limits import EngineLimits
from jaxengine.startup.model_plan import ModelPlan, plan_model
from jaxengine.startup.native import obtain_native
from jaxengine.startup.native_libraries import MIN_WEIGHT_BYTES, multiplies_coded
from jaxengine.startup.progress import Progress
from xla_cache import Bundle
from xla_cache.target import Target

MOST_SEQUENCES_OF_CODED = 64
"""At once, a CPU's default. Steps of one row gain most, prompts lose up to 4%, and more than 64 were not measured
(`benchmarks/results/coded_weights.json`)."""


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A model on its devices and the sizes that were asked for. None of its weights are read, and nothing is compiled.

    `device_bytes` are those of one device, as `device_memory_bytes` has them.
    """

    config: EngineConfig
    model: ModelPlan
    limits: EngineLimits
    progress: Progress
    device_bytes: int

    @property
    def defaults(self) -> PlatformDefaults:
        return DEFAULTS[self.model.platform]

    def with_context(self, max_model_len: int, *, option: str | None = None) -> Prepared:
        """The same with another context length; a shorter one is because of an `option`."""
        return replace(self, limits=self.limits.with_context(max_model_len, option=option))


def prepare(
    config: EngineConfig,
    progress: Progress,
    *,
    weights: bool = False,
    target: Target = LOCAL,
    bundle: Bundle | None = None,
) -> Prepared:
    """Resolve options to a model on a target, and say so in the log.

    Args:
        config: the options, those of the `bundle` among them.
        progress: where it is told.
        weights: whether a model on the hub is fetched whole, or its small files only.
        target: what the engine is for. Where that is described only, nothing can be compiled.
        bundle: whose programs it will start with.

    Raises:
        ConfigError, CheckpointError, BundleError: what was asked for cannot be.
    """
    model = plan_model(config, weights=weights, target=target)
    model = replace(
        model, draft=plan_draft(config, model, partial(plan_model, weights=weights, target=target), weights=weights)
    )
    check_context(config, bundle, model)
    limits = EngineLimits.resolve(
        config,
        model_max_len=model.config.max_position_embeddings,
        defaults=DEFAULTS[model.platform],
        whole_prompts=model.pooler.computes_whole,
        usual_len=model.text_tokens,
    )
    if not target.described:
        native = obtain_native(config, model, progress, bundle)
        model = model.calling(native, codes=_codes(config, limits) and multiplies_coded(native))
    if config.model.code_weights == "always" and not model.codes:
        raise ConfigError(
            "code_weights is always, and no matrix can be kept in 12 bits: that takes one CPU device with AVX-512, a C++ "
            f"compiler and a cache directory, and a model in bfloat16 of {MIN_WEIGHT_BYTES >> 20} MiB or more, "
            "with plain matrices, without adapters or a draft; use auto or never"
        )
    progress.say("resolve", model.describe(random_weights=weights and config.model.load_format == "dummy"))
    if model.draft is not None:
        progress.say("resolve", f"drafts: {model.draft.model.describe(random_weights=False)}")
    if quantised := model.describe_matrices():
        progress.say("resolve", quantised)
    device_bytes = device_memory_bytes(model.devices, target, replicas=config.parallel.replicas_here)
    return Prepared(config=config, model=model, limits=limits, progress=progress, device_bytes=device_bytes)


def _codes(config: EngineConfig, limits: EngineLimits) -> bool:
    """Whether matrices are to be coded where they can be."""
    if config.model.code_weights == "auto":
        return limits.max_num_seqs <= MOST_SEQUENCES_OF_CODED
    return config.model.code_weights == "always"
