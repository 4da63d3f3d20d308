"""The composition root: the only file that knows how both halves of an engine fit together."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np

from jaxengine.contract.facts import EngineFacts
from jaxengine.device.runtime.calibration import calibrate
from jaxengine.device.runtime.executables import Executables
from jaxengine.device.runtime.guard import CompileGuard
from jaxengine.device.runtime.runner import ModelRunner, allocate_state
from jaxengine.device.runtime.space import ProgramSpace
from jaxengine.device.runtime.target import choose_device
from jaxengine.device.weights.source import resolve
from jaxengine.errors import ConfigError, JaxEngineError
from jaxengine.front.front import make_grammars
from jaxengine.grammar.sources import GrammarSources
from jaxengine.host.engine.traffic_log import TrafficLog
from jaxengine.host.kvcache.ledger import Ledger
from jaxengine.host.kvcache.pool import PagePool
from jaxengine.options.config import EngineConfig
from jaxengine.startup.background import BackgroundWarmup
from jaxengine.startup.bundle import adopt, bundle_pool, open_bundle
from jaxengine.startup.engine import HostedEngine, ModelText
from jaxengine.startup.kv_cache import calibration_tokens
from jaxengine.startup.limits import EngineLimits
from jaxengine.startup.model_plan import ModelPlan
from jaxengine.startup.pool import describe_cache, plan_space
from jaxengine.startup.prepare import prepare
from jaxengine.startup.profiler import Profiler
from jaxengine.startup.program_cache import open_cache, remember_start
from jaxengine.startup.progress import Progress
from jaxengine.startup.start import Start, obtain_programs
from jaxengine.startup.weights import OpenedWeights, load_parameters, open_weights, read_weights
from jaxengine.text.generation_config import GenerationDefaults
from jaxengine.text.tokenizer import Tokenizer
from pallas_kernels import QUANTISED_CACHES
from xla_cache import CompileCounter, CompileRecord

logger = logging.getLogger("jaxengine")


@dataclass(kw_only=True)
class Engine(HostedEngine):
    """An engine with the device half behind it.

    `compile_counter` counts what compiled since the engine was ready, in any thread and unplanned; it stays 0 unless warmup
    `none` was chosen. `guard` counts the steps that had to wait for that. `programs` tell where those of the start came from.
    """

    limits: EngineLimits
    space: ProgramSpace
    executables: Executables
    compile_counter: CompileCounter
    guard: CompileGuard
    background: BackgroundWarmup | None
    programs: Sequence[CompileRecord]


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


def build_engine(
    config: EngineConfig,
    *,
    prepare_grammars: bool = False,
    check: Callable[[Tokenizer | None], object] | None = None,
) -> Engine:
    """Resolve, load, compile and warm up an engine. Weights are read and the KV pool is zeroed while programs compile.

    With `prepare_grammars` so is what structured output needs: about a second at 150,000 tokens in which Python stands still, and
    which the first request with a grammar pays otherwise. `check` may refuse the model's tokenizer before weights are read.

    Raises:
        ConfigError, CheckpointError, CapacityError, BundleError: before any device work wherever it can be known.
    """
    progress = Progress()
    traffic_file = config.observability.record_traffic
    traffic_log = None if traffic_file is None else TrafficLog(traffic_file)
    with progress.phase("resolve"):
        choose_device(config.parallel.device)
        config, bundle = adopt(config, open_bundle(config))
        prepared = prepare(config, progress, weights=True, bundle=bundle)
        model = prepared.model
        tokenizer = None if config.model.skip_tokenizer_init else _load_tokenizer(config, model)
        if check is not None:
            check(tokenizer)
        generation = GenerationDefaults.load(
            model.source.path,
            model.config_json,
            hf_overrides=config.model.hf_overrides,
            source=config.model.generation_config,
            override=config.model.override_generation_config,
        )
        weights = open_weights(model, config)
    with ThreadPoolExecutor(2, thread_name_prefix="load") as loading:
        parameters = loading.submit(load_parameters, model, weights, config.model.seed, progress)
        with progress.phase("plan"):
            cache, bundle = open_cache(config, model, bundle)
            pool = None if bundle is None else bundle_pool(bundle)
            planned = plan_space(prepared, cache=cache, pool=pool)
            if gained := describe_cache(model, planned):
                progress.say("plan", gained)
        state = loading.submit(allocate_state, planned.space)
        grammars = make_grammars(config, tokenizer, generation, vocab_size=planned.space.vocab_size)
        if prepare_grammars and grammars is not None:
            loading.submit(_prepare, grammars)
        start = obtain_programs(planned, config, progress, cache=cache)
        loaded = parameters.result()
    calibrate = _calibration(config, model, weights, tokenizer, progress)
    runner = ModelRunner(start.space, start.executables, tuple(loaded.values()), *state.result(), calibrate=calibrate)
    with progress.phase("warm up"):
        seconds = runner.prepare()
    if seconds:
        start = start.with_costs(seconds)
        progress.say("warm up", f"ran {len(start.executables)} programs once in {progress.phases['warm up']:.1f} s")
    text = ModelText(tokenizer=tokenizer, generation=generation, pooling=model.pooling)
    engine = _assemble(config, model, start, runner, text, grammars, progress, traffic_log)
    _say_ready(engine, start.space, progress)
    remember_start(config, model, planned, cache, start.records)
    if start.background is not None:
        start.background.start()
    return engine


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


def _assemble(
    config: EngineConfig,
    model: ModelPlan,
    start: Start,
    runner: ModelRunner,
    text: ModelText,
    grammars: GrammarSources | None,
    progress: Progress,
    traffic_log: TrafficLog | None,
) -> Engine:
    space, limits, background = start.space, start.limits, start.background
    guard = CompileGuard(config.compilation.compile_guard)
    shares_prefix = model.traits.shares_prefix
    if config.cache.enable_prefix_caching and not shares_prefix:
        logger.info("prefix caching is off: layers keep a state of each sequence, which pages of a prefix do not hold")
    ledger = Ledger(
        [PagePool(pages, pool.windows) for pages, pool in zip(space.num_pages, space.cache.pools, strict=True)],
        space.page_size,
        enable_prefix_caching=config.cache.enable_prefix_caching and shares_prefix,
    )
    facts = EngineFacts(
        vocab_size=space.vocab_size,
        embedding_size=model.config.hidden_size,
        generates=model.generates,
        max_model_len=limits.max_model_len,
        longest_context=model.config.max_position_embeddings,
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        page_size=ledger.page_size,
        num_pages=ledger.num_pages,
        kv_tokens=ledger.tokens_held(ahead=limits.max_num_batched_tokens, max_model_len=limits.max_model_len),
        shapes=space.grid.buckets,
        start_phases=progress.phases,
    )
    profiler = Profiler(config.observability.profile)
    compile_counter = CompileCounter().start()
    closing = [profiler.close, compile_counter.stop]
    if background is not None:
        closing.append(background.close)
    if traffic_log is not None:
        closing.append(traffic_log.close)
    engine = Engine.assemble(
        config,
        runner,
        facts,
        text,
        grid=space.grid,
        ledger=ledger,
        grammars=grammars,
        cache=model.traits,
        shapes=None if background is None else background.shapes,
        watch=guard.step,
        program_counts=ProgramCounts(runner.executables, compile_counter),
        tracer=profiler,
        read_weights=partial(read_weights, config, model),
        closing=closing,
        limits=limits,
        space=space,
        executables=runner.executables,
        compile_counter=compile_counter,
        guard=guard,
        background=background,
        programs=start.records,
    )
    if traffic_log is not None:
        engine.core.recorder.listen(traffic_log)
    return engine


def _prepare(grammars: GrammarSources) -> None:
    try:
        grammars.warm_up()
    except JaxEngineError as error:
        logger.warning("requests for structured output will be refused: %s", error)


def _say_ready(engine: Engine, space: ProgramSpace, progress: Progress) -> None:
    limits, tokens = engine.limits, engine.host.facts.kv_tokens
    progress.say(
        "ready",
        f"KV cache size: {tokens:,} tokens in {sum(space.num_pages) - len(space.num_pages):,} pages of {space.page_size}, "
        f"{tokens / limits.max_model_len:.2f} sequences of {limits.max_model_len:,} tokens; "
        f"at most {limits.max_num_seqs} at once",
    )


def _load_tokenizer(config: EngineConfig, model: ModelPlan) -> Tokenizer:
    options = config.model
    if options.tokenizer_revision is not None and options.tokenizer is None:
        raise ConfigError(
            "tokenizer_revision needs tokenizer, a hub id; the model's own tokenizer comes with its revision"
        )
    if options.tokenizer is None:
        return Tokenizer.load(model.source.path, config_json=model.config_json, chat_template=options.chat_template)
    source = resolve(
        options.tokenizer,
        revision=options.tokenizer_revision,
        token=options.hf_token,
        cache_dir=options.download_dir,
        weights=False,
    )
    return Tokenizer.load(source.path, chat_template=options.chat_template)
