"""Which programs an engine starts with, where they come from, and which follow while it serves."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace

import jax

from buckets import ReadyShapes, corrected, covering
from buckets.costs import Costs
from jaxengine.device.runtime.executables import Executables
from jaxengine.device.runtime.program_kinds import HEAVY
from jaxengine.device.runtime.programs import all_programs, step_programs
from jaxengine.device.runtime.space import ProgramSpace
from jaxengine.options.config import EngineConfig
from jaxengine.startup.background import BackgroundWarmup
from jaxengine.startup.limits import EngineLimits
from jaxengine.startup.pool import SpacePlan
from jaxengine.startup.program_cache import check_complete
from jaxengine.startup.progress import Countdown, Progress
from jaxengine.startup.workspace import compile_threads
from xla_cache import CompileRecord, Program, ProgramCache

LONGEST_REASON = 100
"""Characters of why a program had to be compiled; `python -m xla_cache show` has the rest."""


@dataclass(frozen=True)
class Start:
    """The programs of an engine that is about to be ready.

    `background` is there where shapes are still missing, `records` tell where the seconds of each program went. `measured` are
    seconds of a step of each shape.
    """

    space: ProgramSpace
    limits: EngineLimits
    executables: Executables
    records: Sequence[CompileRecord]
    background: BackgroundWarmup | None = None
    measured: Costs = field(default_factory=dict)

    def with_costs(self, seconds: Costs) -> Start:
        """The same, choosing shapes by what steps were measured to take."""
        grid = self.space.grid
        grid = grid.with_costs(corrected(grid.costs, seconds))
        if self.background is not None:
            self.background.shapes.set_costs(grid.costs)
        return replace(self, space=replace(self.space, grid=grid), measured=seconds)


def obtain_programs(
    planned: SpacePlan, config: EngineConfig, progress: Progress, *, cache: ProgramCache | None = None
) -> Start:
    """Load or compile what has to be ready before the first request, as `warmup` says.

    Raises:
        CapacityError: the compiler says that a program does not fit the device.
    """
    space, limits, mode = planned.space, planned.limits, config.compilation.warmup_mode
    everywhere = all_programs(space)
    if cache is not None:
        check_complete(config, cache, everywhere)
    programs = [program for program in everywhere if runs_here(program)]
    if mode == "none":
        progress.say("compile", f"skipped: {len(programs)} programs will compile on first use, while requests wait")
        return Start(space, limits, Executables.lazy(programs, cache), ())
    if mode == "full":
        executables, records = _compile(programs, config, progress, cache)
        return Start(space, limits, executables, records)
    first = _needed_first(space, programs, cache)
    executables, records = _compile([program for program in programs if program.name in first], config, progress, cache)
    ready = [bucket for bucket in space.grid.buckets if first.issuperset(step_programs(space, bucket))]
    shapes = ReadyShapes(space.grid, ready)
    if not shapes.complete:
        progress.say(
            "compile", f"{len(programs) - len(first)} programs follow in the background; until then requests pad up"
        )
    by_name = {program.name: program for program in programs}
    return Start(space, limits, executables, records, BackgroundWarmup(space, by_name, executables, shapes, cache))


def runs_here(program: Program) -> bool:
    """Whether this host launches it."""
    return any(device.process_index == jax.process_index() for device in program.devices)


def _needed_first(space: ProgramSpace, programs: Sequence[Program], cache: ProgramCache | None) -> set[str]:
    """The names of what covers all work, and of what is kept already: loading takes no time worth a detour."""
    names = {name for bucket in covering(space.grid) for name in step_programs(space, bucket)}
    kept = () if cache is None else (program.name for program in programs if cache.find(program) is not None)
    return names.union(kept)


def _compile(
    programs: Sequence[Program], config: EngineConfig, progress: Progress, cache: ProgramCache | None
) -> tuple[Executables, list[CompileRecord]]:
    threads = compile_threads(config)
    costs = {program.name: expected_cost(program) for program in programs}
    countdown = Countdown(progress, "compile", total=len(programs), total_cost=sum(costs.values()))

    def on_done(record: CompileRecord, compiled: jax.stages.Compiled) -> None:
        countdown.done(f"{record.name} {record.wall_s:.1f} s{_outcome(record)}", costs[record.name])

    with progress.phase("compile"), _turn(programs, config, progress, cache):
        executables, records = Executables.compile(programs, threads=threads, on_done=on_done, cache=cache)
    progress.say("compile", f"{describe(records)} in {progress.phases['compile']:.1f} s on {threads} threads")
    return executables, records


def _turn(
    programs: Sequence[Program], config: EngineConfig, progress: Progress, cache: ProgramCache | None
) -> AbstractContextManager[None]:
    """Of replicas that need the same programs one compiles them, while the others wait to load them."""
    if config.parallel.replicas_here == 1 or cache is None or cache.store is None:
        return nullcontext()
    if all(cache.find(program) is not None for program in programs):
        return nullcontext()
    progress.say("compile", "one replica after the other: the first compiles, and the others load what it has kept")
    return cache.store.turn()


def _outcome(record: CompileRecord) -> str:
    if record.origin != "compiler":
        return ", loaded"
    return "" if record.missed is None else f", {textwrap.shorten(record.missed, LONGEST_REASON, placeholder=' ...')}"


def describe(records: Sequence[CompileRecord]) -> str:
    """How many programs came from where, and what they took in all: `35 programs, 35 compiled (trace ... s, ...)`."""
    origins = {"bundle": "from the bundle", "store": "from the store", "compiler": "compiled"}
    counts = {text: sum(record.origin == name for record in records) for name, text in origins.items()}
    names = {"trace_s": "trace", "lower_s": "lower", "compile_s": "compile", "load_s": "load"}
    seconds = {text: sum(getattr(record, name) for record in records) for name, text in names.items()}
    return (
        f"{len(records)} programs, {', '.join(f'{count} {text}' for text, count in counts.items() if count)} "
        f"({', '.join(f'{text} {spent:.1f} s' for text, spent in seconds.items() if spent >= 0.05)})"
    )


def expected_cost(program: Program) -> float:
    """How long a program takes to compile, relative to others: for estimates of what is left."""
    # What holds a model's layers takes about three times as long as a sampling program, whatever its shape.
    return 3.0 if program.weight >= HEAVY else 1.0
