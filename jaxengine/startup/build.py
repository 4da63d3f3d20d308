"""The composition root: how both halves of an engine fit together. `part.py` makes the device half."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from jaxengine.collector import without_collection
from jaxengine.contract.facts import EngineFacts
from jaxengine.contract.runner import Runner
from jaxengine.contract.transfer import TransferFacts
from jaxengine.device.layers.schemes.coded import plain
from jaxengine.device.runtime.block_moves import block_bytes
from jaxengine.device.runtime.executables import Executables
from jaxengine.device.runtime.guard import CompileGuard
from jaxengine.device.runtime.space import ProgramSpace
from jaxengine.host.engine.traffic_log import TrafficLog
from jaxengine.host.kvcache.ledger import Ledger
from jaxengine.options.config import EngineConfig
from jaxengine.startup.adapters import adapter_facts
from jaxengine.startup.background import BackgroundWarmup
from jaxengine.startup.encoder_plan import media_facts
from jaxengine.startup.engine import HostedEngine
from jaxengine.startup.grid import costed
from jaxengine.startup.group.leading import LeadingGroup
from jaxengine.startup.group.leading_runner import LeadingRunner
from jaxengine.startup.ledger import make_ledger
from jaxengine.startup.limits import EngineLimits
from jaxengine.startup.outer_stores import Outer, open_outer_stores
from jaxengine.startup.part import CheckTokenizer, Part, PrepareGrammars, Tell, build_part
from jaxengine.startup.profiler import Profiler
from jaxengine.startup.program_cache import remember_start
from jaxengine.startup.progress import Progress
from jaxengine.startup.step_timeout import step_timeout
from jaxengine.startup.weights import read_weights
from xla_cache import CompileCounter, CompileRecord


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


@without_collection()
def build_engine(
    config: EngineConfig,
    *,
    prepare_grammars: PrepareGrammars | None = None,
    check: CheckTokenizer | None = None,
    tell: Tell | None = None,
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


def _assemble(part: Part, steps: Runner, traffic_log: TrafficLog | None) -> Engine:
    """Both halves; `steps` is the runner that the loop has, by way of the other hosts where there are such."""
    config, model, start, runner = part.config, part.model, part.start, part.runner
    space, background = start.space, start.background

    def parameters() -> dict[str, Any]:
        return dict(zip(space.all_parameters, runner.parameters, strict=True))

    outer = open_outer_stores(config.cache, model, space, parameters(), part.outer_plan, part.progress)
    ledger = make_ledger(config, model.traits, space, outer)
    if outer is not None:
        runner.attach(outer.stores, outer.written)
    transfer = None if outer is None else outer.transfer
    guard = CompileGuard(config.compilation.compile_guard)
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
        _facts(part, ledger, None if transfer is None else transfer.facts),
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
        weights=lambda: plain(parameters()),
        draft_costs=runner.draft_costs,
        limits=start.limits,
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


def _facts(part: Part, ledger: Ledger, transfer: TransferFacts | None) -> EngineFacts:
    """What the front is told of the engine."""
    config, model, start = part.config, part.model, part.start
    space, limits = start.space, start.limits
    return EngineFacts(
        vocab_size=space.vocab_size,
        pooler=model.pooler,
        generates=model.generates,
        max_model_len=limits.max_model_len,
        longest_context=model.config.max_position_embeddings,
        context_option=limits.context_option,
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        page_size=ledger.page_size,
        num_pages=ledger.pools.num_pages,
        host_blocks=sum(space.host_blocks),
        host_bytes=sum(count * size for count, size in zip(space.host_blocks, block_bytes(space), strict=False)),
        kv_tokens=ledger.pools.tokens_held(
            page_size=ledger.page_size, ahead=limits.max_num_batched_tokens, max_model_len=limits.max_model_len
        ),
        shapes=space.grid.buckets,
        floors=costed(space.grid, limits, model).costs if model.target.chip is not None else {},
        start_phases=part.progress.phases,
        caches_prefixes=ledger.caches_prefixes,
        transfer=transfer,
        adapters=adapter_facts(config.lora),
        media=media_facts(space.media),
        step_timeout_s=step_timeout(
            model.platform, start.measured, compiles_on_use=config.compilation.warmup_mode == "none"
        ),
    )


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
