"""The composition root: the only file that knows how both halves of an engine fit together."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from jaxengine.contract.facts import EngineFacts
from jaxengine.contract.messages import EngineDead, ModelFound, StartProgress
from jaxengine.contract.model_source import ModelSource
from jaxengine.contract.runner import Runner
from jaxengine.device.runtime.block_moves import block_bytes, most_leaving
from jaxengine.device.runtime.calibration import calibrate
from jaxengine.device.runtime.executables import Executables
from jaxengine.device.runtime.guard import CompileGuard
from jaxengine.device.runtime.held_weights import HeldWeights
from jaxengine.device.runtime.launcher import allocate_state
from jaxengine.device.runtime.runner import ModelRunner
from jaxengine.device.runtime.space import ProgramSpace
from jaxengine.device.runtime.target import choose_device
from jaxengine.device.weights.source import resolve
from jaxengine.errors import ConfigError
from jaxengine.front.front import make_grammars
from jaxengine.front.model_text import ModelText
from jaxengine.grammar.sources import GrammarSources
from jaxengine.host.engine.traffic_log import TrafficLog
from jaxengine.host.kvcache.host_tier import HostTier
from jaxengine.host.kvcache.ledger import Ledger
from jaxengine.host.kvcache.pool import PagePool
from jaxengine.host.kvcache.prefix import Prefixes, keyed_hash
from jaxengine.options.config import EngineConfig
from jaxengine.startup.adapters import adapter_facts, adapter_reader
from jaxengine.startup.background import BackgroundWarmup
from jaxengine.startup.bundle import adopt, bundle_pool, open_bundle
from jaxengine.startup.encoder_plan import media_facts
from jaxengine.startup.engine import HostedEngine
from jaxengine.startup.grid import costed
from jaxengine.startup.group.alike import agree_on_weights, obtain_alike, plan_alike
from jaxengine.startup.group.following import FollowingGroup
from jaxengine.startup.group.group import Alone
from jaxengine.startup.group.join import join
from jaxengine.startup.group.leading import LeadingGroup
from jaxengine.startup.group.leading_runner import LeadingRunner
from jaxengine.startup.kv_cache import calibration_tokens
from jaxengine.startup.limits import EngineLimits
from jaxengine.startup.model_plan import ModelPlan
from jaxengine.startup.native import begin_native, refuse_native
from jaxengine.startup.offloading import check_host_memory
from jaxengine.startup.outer_stores import Outer, OuterPlan, open_outer_stores, plan_outer_stores
from jaxengine.startup.pool import SpacePlan, describe_cache
from jaxengine.startup.prepare import prepare
from jaxengine.startup.profiler import Profiler
from jaxengine.startup.program_cache import open_cache, remember_start
from jaxengine.startup.progress import Progress
from jaxengine.startup.replica_part import take_part
from jaxengine.startup.start import Start
from jaxengine.startup.state_snapshots import make_snapshots
from jaxengine.startup.step_timeout import step_timeout
from jaxengine.startup.weights import OpenedWeights, load_draft, load_parameters, open_weights, read_weights
from jaxengine.text.tokenizer import Tokenizer
from pallas_kernels import QUANTISED_CACHES
from xla_cache import CompileCounter, CompileRecord, LinkError, ProgramCache

logger = logging.getLogger("jaxengine")


@dataclass(kw_only=True)
class Engine(HostedEngine):
    """An engine with the device half behind it.

    `compile_counter` counts what compiled since the engine was ready, in any thread and unplanned; it stays 0 unless warmup
    `none` was chosen. `guard` counts the steps that had to wait for that. `programs` tell where those of the start came from.
    `outer` is what lies behind the host's memory.
    """

    limits: EngineLimits
    space: ProgramSpace
    executables: Executables
    compile_counter: CompileCounter
    guard: CompileGuard
    background: BackgroundWarmup | None
    programs: Sequence[CompileRecord]
    outer: Outer | None


@dataclass(frozen=True, slots=True)
class ProgramCounts:
    """What `EngineStatistics` says of programs."""

    executables: Executables
    compile_counter: CompileCounter

    @property
    def num_programs(self) -> int:
        """Compiled programs."""
        return len(self.executables)

    @property
    def num_compilations(self) -> int:
        """Programs that were compiled since the engine was ready, in any thread and unplanned."""
        return self.compile_counter.count


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


def build_engine(
    config: EngineConfig,
    *,
    prepare_grammars: Callable[[GrammarSources], object] | None = None,
    check: Callable[[Tokenizer | None], object] | None = None,
    tell: Callable[[StartProgress | ModelFound | EngineDead], None] | None = None,
) -> Engine:
    """Resolve, load, compile and warm up an engine. Weights are read and the KV pool is zeroed while programs compile.

    Args:
        config: its options.
        prepare_grammars: does meanwhile what structured output needs: about a second at 150,000 tokens in which Python stands
            still, and which the first request with a grammar pays otherwise.
        check: may refuse the model's tokenizer before weights are read.
        tell: is told how the start goes on, and when another host of the engine is lost, on whatever thread.

    Raises:
        ConfigError, CheckpointError, CapacityError, BundleError: before any device work wherever it can be known.
    """
    config.parallel.check_alone()
    config.parallel.check_first()
    traffic_file = config.observability.record_traffic
    traffic_log = None if traffic_file is None else TrafficLog(traffic_file)
    part = build_part(config, prepare_grammars=prepare_grammars, check=check, tell=tell)
    start, progress = part.start, part.progress
    runner = LeadingRunner(part.runner, part.group) if isinstance(part.group, LeadingGroup) else part.runner
    with progress.phase("warm up"):
        seconds = runner.prepare()
    if seconds:
        start = start.with_costs(seconds)
        progress.say("warm up", f"ran {len(start.executables)} programs once in {progress.phases['warm up']:.1f} s")
    engine = _assemble(replace(part, start=start), runner, traffic_log)
    _say_ready(engine, start.space, progress)
    remember_start(part.config, part.model, part.planned, part.cache, start.records)
    if start.background is not None:
        start.background.start()
    return engine


def build_part(
    config: EngineConfig,
    *,
    prepare_grammars: Callable[[GrammarSources], object] | None = None,
    check: Callable[[Tokenizer | None], object] | None = None,
    tell: Callable[[StartProgress | ModelFound | EngineDead], None] | None = None,
) -> Part:
    """What each host does of `build_engine`, whose arguments and errors these are."""
    progress = Progress(tell)
    group = join(config, progress, tell or (lambda dead: None))
    begun = partial(_begin_part, config, group, progress, prepare_grammars=prepare_grammars, check=check, tell=tell)
    try:
        return begun()
    except LinkError as error:
        refuse_native(error)
        return begun()


def _begin_part(
    config: EngineConfig,
    group: LeadingGroup | FollowingGroup | Alone,
    progress: Progress,
    *,
    prepare_grammars: Callable[[GrammarSources], object] | None,
    check: Callable[[Tokenizer | None], object] | None,
    tell: Callable[[StartProgress | ModelFound | EngineDead], None] | None,
) -> Part:
    """
    Raises:
        LinkError: the programs were traced to call libraries that cannot be built.
    """
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
        weights = open_weights(model, config)
        of_draft = None if model.draft is None else open_weights(model.draft.model, model.draft.config)
        outer_plan = plan_outer_stores(config.cache)
    with ThreadPoolExecutor(2, thread_name_prefix="load") as loading:
        parameters = loading.submit(load_parameters, model, weights, config.model.seed, progress)
        with progress.phase("plan"):
            cache, bundle = open_cache(config, model, bundle)
            pool = None if bundle is None else bundle_pool(bundle)
            planned = plan_alike(group, prepared, cache=cache, pool=pool)
            if gained := describe_cache(model, planned):
                progress.say("plan", gained)
        state = loading.submit(allocate_state, planned.space)
        grammars = make_grammars(config, text, vocab_size=planned.space.vocab_size)
        if prepare_grammars is not None and grammars is not None:
            loading.submit(prepare_grammars, grammars)
        start = obtain_alike(group, planned, config, progress, cache)
        loaded = parameters.result()
        if model.draft is not None and of_draft is not None:
            loaded |= load_draft(model.draft, of_draft, config.model.seed, progress)
        agree_on_weights(group, loaded)
    calibrate = _calibration(config, model, weights, text.tokenizer, progress)
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
        outer_plan=outer_plan,
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


def _assemble(part: Part, steps: Runner, traffic_log: TrafficLog | None) -> Engine:
    """Both halves; `steps` is the runner that the loop has, by way of the other hosts where there are such."""
    config, model, start, runner, progress = part.config, part.model, part.start, part.runner, part.progress
    space, limits, background = start.space, start.limits, start.background
    numbers = dict(zip(space.all_parameters, runner.parameters, strict=True))
    outer = open_outer_stores(config.cache, model, space, numbers, part.outer_plan, progress)
    guard = CompileGuard(config.compilation.compile_guard)
    snapshots = make_snapshots(config, model.traits, count=space.num_snapshots, page_size=space.page_size)
    caches_prefixes = config.cache.enable_prefix_caching and (model.traits.rewinds or snapshots is not None)
    if config.cache.enable_prefix_caching and not caches_prefixes:
        logger.info("prefix caching is off: layers keep a state of each sequence, of which there are to be no copies")
    check_host_memory(config.cache, caches_prefixes=caches_prefixes)
    tier = None
    if space.host_blocks:
        *of_pages, of_snapshots = space.host_blocks if snapshots is not None else (*space.host_blocks, 0)
        tier = HostTier(of_pages, most_leaving=most_leaving(space), outer=outer is not None, snapshots=of_snapshots)
    transfer = None if outer is None else outer.transfer
    if outer is not None:
        runner.attach(outer.stores, outer.written)
    ledger = Ledger(
        [PagePool(pages, pool.windows) for pages, pool in zip(space.num_pages, space.cache.pools, strict=True)],
        space.page_size,
        enable_prefix_caching=caches_prefixes,
        prefixes=None if outer is None else Prefixes(hash=keyed_hash(outer.secret)),
        tier=tier,
        snapshots=snapshots,
    )
    facts = EngineFacts(
        vocab_size=space.vocab_size,
        pooler=model.pooler,
        generates=model.generates,
        max_model_len=limits.max_model_len,
        longest_context=model.config.max_position_embeddings,
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        page_size=ledger.page_size,
        num_pages=ledger.num_pages,
        host_blocks=sum(space.host_blocks),
        host_bytes=sum(count * size for count, size in zip(space.host_blocks, block_bytes(space), strict=False)),
        kv_tokens=ledger.tokens_held(ahead=limits.max_num_batched_tokens, max_model_len=limits.max_model_len),
        shapes=space.grid.buckets,
        floors=costed(space.grid, limits, model).costs if model.target.chip is not None else {},
        start_phases=progress.phases,
        caches_prefixes=caches_prefixes,
        transfer=None if transfer is None else transfer.facts,
        adapters=adapter_facts(config.lora),
        media=media_facts(space.media),
        step_timeout_s=step_timeout(
            model.platform, start.measured, compiles_on_use=config.compilation.warmup_mode == "none"
        ),
    )
    profiler = Profiler(_trace_directory(config))
    compile_counter = CompileCounter().start()
    closing = [profiler.close, compile_counter.stop]
    if background is not None:
        closing.append(background.close)
    if traffic_log is not None:
        closing.append(traffic_log.close)
    engine = Engine.assemble(
        config,
        steps,
        facts,
        part.text,
        grid=space.grid,
        ledger=ledger,
        grammars=part.grammars,
        cache=model.traits,
        shapes=None if background is None else background.shapes,
        watch=guard.step,
        program_counts=ProgramCounts(runner.executables, compile_counter),
        tracer=profiler,
        read_weights=partial(read_weights, config, model),
        know_peer=None if transfer is None else transfer.know_peer,
        closing=closing,
        weights=lambda: dict(zip(space.all_parameters, runner.parameters, strict=True)),
        draft_costs=runner.draft_costs,
        limits=limits,
        space=space,
        executables=runner.executables,
        compile_counter=compile_counter,
        guard=guard,
        background=background,
        programs=start.records,
        outer=outer,
    )
    if traffic_log is not None:
        engine.core.recorder.listen(traffic_log)
    return engine


def _trace_directory(config: EngineConfig) -> str | None:
    """Replicas that begin a trace in the same second would write the same files."""
    directory, parallel = config.observability.profile, config.parallel
    if directory is None or parallel.data_parallel_size == 1:
        return directory
    return os.path.join(directory, f"engine-{parallel.ranks[0]}")


def _say_ready(engine: Engine, space: ProgramSpace, progress: Progress) -> None:
    limits, tokens = engine.limits, engine.host.facts.kv_tokens
    progress.say(
        "ready",
        f"KV cache size: {tokens:,} tokens in {sum(space.num_pages) - len(space.num_pages):,} pages of {space.page_size}, "
        f"{tokens / limits.max_model_len:.2f} sequences of {limits.max_model_len:,} tokens; "
        f"at most {limits.max_num_seqs} at once",
    )


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
        )
    return ModelSource(
        path=model.source.path,
        config_json=model.config_json,
        vocab_size=model.config.vocab_size,
        tokenizer_path=None if own is None else own.path,
        config=config,
    )
