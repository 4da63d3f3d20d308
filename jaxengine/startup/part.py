"""What each host does to have its part of an engine: read the model, plan, compile and load."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from jaxengine.contract.messages import EngineDead, ModelFound, StartProgress
from jaxengine.contract.model_source import ModelSource
from jaxengine.device.runtime.calibration import calibrate
from jaxengine.device.runtime.held_weights import HeldWeights
from jaxengine.device.runtime.launcher import allocate_state
from jaxengine.device.runtime.runner import ModelRunner
from jaxengine.device.runtime.target import choose_device
from jaxengine.device.weights.source import resolve
from jaxengine.errors import ConfigError
from jaxengine.front.front import make_grammars
from jaxengine.front.model_text import ModelText
from jaxengine.grammar.sources import GrammarSources
from jaxengine.options.config import EngineConfig
from jaxengine.startup.adapters import adapter_reader
from jaxengine.startup.bundle import adopt, bundle_pool, open_bundle
from jaxengine.startup.group.alike import agree_on_weights, obtain_alike, plan_alike
from jaxengine.startup.group.following import FollowingGroup
from jaxengine.startup.group.group import Alone
from jaxengine.startup.group.join import join
from jaxengine.startup.group.leading import LeadingGroup
from jaxengine.startup.kv_cache import calibration_tokens
from jaxengine.startup.model_plan import ModelPlan
from jaxengine.startup.native import begin_native, native_linker, refuse_native
from jaxengine.startup.outer_stores import OuterPlan, plan_outer_stores
from jaxengine.startup.pool import SpacePlan, describe_cache
from jaxengine.startup.prepare import Prepared, prepare
from jaxengine.startup.program_cache import open_cache
from jaxengine.startup.progress import Progress
from jaxengine.startup.replica_part import take_part
from jaxengine.startup.start import Start
from jaxengine.startup.weights import OpenedWeights, load_draft, load_parameters, open_weights
from jaxengine.text.tokenizer import Tokenizer
from pallas_kernels import QUANTISED_CACHES
from xla_cache import Bundle, LinkError, ProgramCache

PrepareGrammars = Callable[[GrammarSources], object]
"""Does beside the start what structured output needs."""
CheckTokenizer = Callable[[Tokenizer | None], object]
"""May refuse the model's tokenizer."""
Tell = Callable[[StartProgress | ModelFound | EngineDead], None]
"""Is told how the start goes on, and when another host of the engine is lost, on whatever thread."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """What each host has of an engine: a runner over all devices, which is not warm yet. One host alone has all of it."""

    config: EngineConfig
    group: LeadingGroup | FollowingGroup | Alone
    model: ModelPlan
    planned: SpacePlan
    cache: ProgramCache
    start: Start
    runner: ModelRunner
    text: ModelText
    grammars: GrammarSources | None
    outer_plan: OuterPlan | None
    progress: Progress


@dataclass(frozen=True, kw_only=True)
class _Resolved:
    """What is known of an engine before anything is compiled or any weight is read."""

    config: EngineConfig
    bundle: Bundle | None
    prepared: Prepared
    text: ModelText
    weights: OpenedWeights
    draft_weights: OpenedWeights | None
    outer_plan: OuterPlan | None


def build_part(
    config: EngineConfig,
    *,
    prepare_grammars: PrepareGrammars | None = None,
    check: CheckTokenizer | None = None,
    tell: Tell | None = None,
) -> Part:
    """What each host does of `build_engine`, whose arguments and errors these are."""
    progress = Progress(tell)
    group = join(config, progress, tell or (lambda dead: None))

    def begin() -> Part:
        return _load(_resolve(config, progress, check=check, tell=tell), group, progress, prepare_grammars)

    try:
        return begin()
    except LinkError as error:
        refuse_native(error)
        return begin()


def _resolve(config: EngineConfig, progress: Progress, *, check: CheckTokenizer | None, tell: Tell | None) -> _Resolved:
    """Read what describes the model and its text, and refuse what can be refused before any device work."""
    with progress.phase("resolve"):
        if part := take_part(config.parallel):
            progress.say("resolve", part)
        choose_device(config.parallel.device)
        config, bundle = adopt(config, open_bundle(config))
        prepared = prepare(config, progress, weights=True, bundle=bundle)
        model = prepared.model
        begin_native(model)
        source = _text_source(config, model)
        text = ModelText.load(source)
        if check is not None:
            check(text.tokenizer)
        if tell is not None:
            tell(ModelFound(source))
        return _Resolved(
            config=config,
            bundle=bundle,
            prepared=prepared,
            text=text,
            weights=open_weights(model, config),
            draft_weights=None if model.draft is None else open_weights(model.draft.model, model.draft.config),
            outer_plan=plan_outer_stores(config.cache),
        )


def _load(
    resolved: _Resolved,
    group: LeadingGroup | FollowingGroup | Alone,
    progress: Progress,
    prepare_grammars: PrepareGrammars | None,
) -> Part:
    """Compile the programs while weights are read, and put a runner together.

    Raises:
        LinkError: the programs were traced to call libraries that cannot be built.
    """
    config, prepared, text = resolved.config, resolved.prepared, resolved.text
    model = prepared.model
    with ThreadPoolExecutor(2, thread_name_prefix="load") as loading:
        parameters = loading.submit(load_parameters, model, resolved.weights, config.model.seed, progress)
        with progress.phase("plan"):
            cache, bundle = open_cache(config, model, resolved.bundle)
            pool = None if bundle is None else bundle_pool(bundle)
            planned = plan_alike(group, prepared, cache=cache, pool=pool)
            if gained := describe_cache(model, planned):
                progress.say("plan", gained)
        state = loading.submit(allocate_state, planned.space, native_linker(model))
        grammars = make_grammars(config, text, vocab_size=planned.space.vocab_size)
        if prepare_grammars is not None and grammars is not None:
            loading.submit(prepare_grammars, grammars)
        start = obtain_alike(group, planned, config, progress, cache)
        loaded = parameters.result()
        if model.draft is not None and resolved.draft_weights is not None:
            loaded |= load_draft(model.draft, resolved.draft_weights, config.model.seed, progress)
        agree_on_weights(group, loaded)
    calibrate = _calibration(config, model, resolved.weights, text.tokenizer, progress)
    runner = ModelRunner(
        start.space,
        start.executables,
        HeldWeights(start.space, tuple(loaded.values())),
        *state.result(),
        calibrate=calibrate,
        read_adapter=adapter_reader(model, config.model.load_format),
    )
    return Part(
        config=config,
        group=group,
        model=model,
        planned=planned,
        cache=cache,
        start=start,
        runner=runner,
        text=text,
        grammars=grammars,
        outer_plan=resolved.outer_plan,
        progress=progress,
    )


def _calibration(
    config: EngineConfig, model: ModelPlan, weights: OpenedWeights, tokenizer: Tokenizer | None, progress: Progress
) -> Callable[[ModelRunner], None] | None:
    """What finds out the scales of a quantised cache, where they are not given."""
    if model.kv_dtype not in QUANTISED_CACHES:
        return None
    if weights.cache_scales:
        progress.say("KV cache", "scales are the checkpoint's")
        return None
    if model.kv_dtype != np.int8 and not config.cache.calculate_kv_scales:
        progress.say("KV cache", "scales are 1, as the checkpoint has none (calculate_kv_scales measures them)")
        return None
    tokens = calibration_tokens(tokenizer, model.config.vocab_size)

    def measure(runner: ModelRunner) -> None:
        with progress.phase("calibrate"):
            count = calibrate(runner, tokens, model.kv_dtype)
        took = progress.phases["calibrate"]
        progress.say(
            "KV cache", f"scales measured of {count} tokens in {took:.1f} s, a scale for each head of each layer"
        )

    return measure


def _text_source(config: EngineConfig, model: ModelPlan) -> ModelSource:
    """Where the model's text is described; a tokenizer of its own is fetched.

    Raises:
        ConfigError, CheckpointError: there is no such tokenizer.
    """
    options, own = config.model, None
    if options.tokenizer_revision is not None and options.tokenizer is None:
        raise ConfigError(
            "tokenizer_revision needs tokenizer, a hub id; the model's own tokenizer comes with its revision"
        )
    if options.tokenizer is not None and not options.skip_tokenizer_init:
        own = resolve(
            options.tokenizer,
            revision=options.tokenizer_revision,
            token=options.hf_token,
            cache_dir=options.download_dir,
            weights=False,
            option="tokenizer",
        )
    return ModelSource(
        path=model.source.path,
        config_json=model.config_json,
        vocab_size=model.config.vocab_size,
        tokenizer_path=None if own is None else own.path,
        config=config,
    )
