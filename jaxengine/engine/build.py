"""The composition root: the only file that knows how the parts of an engine fit together."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import jax

from jaxengine.config import EngineConfig
from jaxengine.engine.core import EngineCore
from jaxengine.engine.intake import Intake
from jaxengine.engine.limits import EngineLimits
from jaxengine.engine.model_plan import ModelPlan, load_parameters, open_weights, plan_model
from jaxengine.engine.pool import compile_threads, plan_space
from jaxengine.engine.postprocess import Postprocessor
from jaxengine.engine.progress import Countdown, Progress
from jaxengine.errors import ConfigError
from jaxengine.kvcache.ledger import Ledger
from jaxengine.runtime.executables import Executables
from jaxengine.runtime.programs import ProgramSpace, all_programs
from jaxengine.runtime.runner import ModelRunner
from jaxengine.runtime.target import DEFAULTS, PlatformDefaults
from jaxengine.scheduler.limits import SchedulerLimits
from jaxengine.scheduler.scheduler import Scheduler
from jaxengine.text.generation_config import GenerationDefaults
from jaxengine.text.tokenizer import Tokenizer
from jaxengine.weights.source import ResolvedModel, resolve
from xla_cache import CompileCounter, CompileRecord, Program


@dataclass
class Engine:
    """A started engine: the loop, the way in, and what a front door needs to know about the model.

    `compile_counter` counts compilations since the engine was ready; it stays 0 unless `skip_warmup` was chosen.
    """

    config: EngineConfig
    core: EngineCore
    ledger: Ledger
    intake: Intake
    tokenizer: Tokenizer | None
    generation: GenerationDefaults
    limits: EngineLimits
    vocab_size: int
    executables: Executables
    compile_counter: CompileCounter
    phases: Mapping[str, float]

    def close(self) -> None:
        """Free the device. Closing twice is fine."""
        self.compile_counter.stop()
        self.core.close()


def build_engine(config: EngineConfig) -> Engine:
    """Resolve, load, compile and warm up an engine. Weights are read while programs compile.

    Raises:
        ConfigError, CheckpointError, CapacityError: before any device work wherever it can be known.
    """
    progress = Progress()
    with progress.phase("resolve"):
        model = plan_model(config)
        defaults = DEFAULTS[model.platform]
        limits = EngineLimits.resolve(config, model_max_len=model.config.max_position_embeddings, defaults=defaults)
        tokenizer = None if config.model.skip_tokenizer_init else _load_tokenizer(config, model.source)
        generation = GenerationDefaults.load(
            model.source.path,
            source=config.model.generation_config,
            override=config.model.override_generation_config,
        )
        weights = open_weights(model, config)
        progress.say("resolve", model.describe(random_weights=weights is None))
    with ThreadPoolExecutor(1, thread_name_prefix="load") as loading:
        parameters = loading.submit(load_parameters, model, weights, config.model.seed, progress)
        space, executables, limits = _compile(model, config, limits, defaults, progress)
        loaded = parameters.result()
    runner = ModelRunner(space, executables, tuple(loaded.values()))
    if not config.compilation.skip_warmup:
        with progress.phase("warm up"):
            runner.warm_up()
        progress.say("warm up", f"ran {len(executables)} programs once in {progress.phases['warm up']:.1f} s")
    engine = _assemble(config, model, limits, space, runner, tokenizer, generation, progress)
    _say_ready(engine, space, progress)
    return engine


def _compile(
    model: ModelPlan, config: EngineConfig, limits: EngineLimits, defaults: PlatformDefaults, progress: Progress
) -> tuple[ProgramSpace, Executables, EngineLimits]:
    """Plan the KV pool and compile every program for it."""
    threads = compile_threads(config)
    with progress.phase("compile"):
        planned = plan_space(model, config, limits, defaults, progress)
        space, limits = planned.space, planned.limits
        programs = all_programs(space)
        if config.compilation.skip_warmup:
            progress.say("compile", f"skipped: {len(programs)} programs will compile on first use, while requests wait")
            return space, Executables.lazy(programs), limits
        countdown = Countdown(
            progress, "compile", total=len(programs), total_cost=sum(_cost(program) for program in programs)
        )
        costs = {program.name: _cost(program) for program in programs}

        def on_done(record: CompileRecord, compiled: jax.stages.Compiled) -> None:
            countdown.done(f"{record.name} {record.wall_s:.1f} s", costs[record.name])

        executables, records = Executables.compile(programs, threads=threads, on_done=on_done)
    seconds = {name: sum(getattr(record, name) for record in records) for name in ("trace_s", "lower_s", "compile_s")}
    progress.say(
        "compile",
        f"{len(records)} programs in {progress.phases['compile']:.1f} s on {threads} threads "
        f"(trace {seconds['trace_s']:.1f} s, lower {seconds['lower_s']:.1f} s, compile {seconds['compile_s']:.1f} s)",
    )
    return space, executables, limits


def _cost(program: Program) -> float:
    # A forward pass takes about three times as long to compile as a sampling program, whatever its shape.
    return 3.0 if program.name.startswith("forward") else 1.0


def _assemble(
    config: EngineConfig,
    model: ModelPlan,
    limits: EngineLimits,
    space: ProgramSpace,
    runner: ModelRunner,
    tokenizer: Tokenizer | None,
    generation: GenerationDefaults,
    progress: Progress,
) -> Engine:
    ledger = Ledger(space.num_pages, space.page_size, enable_prefix_caching=config.cache.enable_prefix_caching)
    scheduler = Scheduler(
        SchedulerLimits(
            max_num_seqs=limits.max_num_seqs,
            max_num_batched_tokens=limits.max_num_batched_tokens,
            max_model_len=limits.max_model_len,
            long_prefill_token_threshold=config.scheduler.long_prefill_token_threshold,
            scheduling_policy=config.scheduler.scheduling_policy,
            deterministic=config.scheduler.deterministic,
        ),
        space.grid,
        ledger,
        vocab_size=space.vocab_size,
    )
    intake = Intake(
        tokenizer,
        vocab_size=space.vocab_size,
        max_model_len=limits.max_model_len,
        max_logprobs=config.model.max_logprobs,
        seed=config.model.seed,
        defaults=generation,
    )
    return Engine(
        config=config,
        core=EngineCore(scheduler, runner, Postprocessor(tokenizer)),
        ledger=ledger,
        intake=intake,
        tokenizer=tokenizer,
        generation=generation,
        limits=limits,
        vocab_size=space.vocab_size,
        executables=runner.executables,
        compile_counter=CompileCounter().start(),
        phases=progress.phases,
    )


def _say_ready(engine: Engine, space: ProgramSpace, progress: Progress) -> None:
    limits = engine.limits
    tokens = (space.num_pages - 1) * space.page_size
    progress.say(
        "ready",
        f"KV cache size: {tokens:,} tokens in {space.num_pages - 1:,} pages of {space.page_size}, "
        f"{tokens / limits.max_model_len:.2f} sequences of {limits.max_model_len:,} tokens; "
        f"at most {limits.max_num_seqs} at once",
    )


def _load_tokenizer(config: EngineConfig, source: ResolvedModel) -> Tokenizer:
    options = config.model
    if options.tokenizer_revision is not None and options.tokenizer is None:
        raise ConfigError(
            "tokenizer_revision needs tokenizer, a hub id; the model's own tokenizer comes with its revision"
        )
    directory = source.path
    if options.tokenizer is not None:
        directory = resolve(
            options.tokenizer,
            revision=options.tokenizer_revision,
            token=options.hf_token,
            cache_dir=options.download_dir,
            weights=False,
        ).path
    return Tokenizer.load(directory, chat_template=options.chat_template)
