"""Find, or lower and compile, many programs at once, the largest first."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import jax

from xla_cache.cache import Found, ProgramCache
from xla_cache.environment import available_cores
from xla_cache.errors import CacheError, LinkError, RefusedError
from xla_cache.events import measured_phases
from xla_cache.jax_cache import hits, without_jax_cache
from xla_cache.program import Program
from xla_cache.record import Record, Seconds

# XLA's lowering recurses over the graph: an unrolled model of 80 layers overflows the default 8 MiB.
THREAD_STACK_BYTES = 64 << 20


@dataclass(frozen=True)
class CompileRecord:
    """Where the seconds of one program went, and where it came from: `compiler`, `store` or `bundle`.

    `wall_s` includes waiting for other threads; `load_s` is reading, checking and loading what was kept; `missed` says for a
    compiled program which part of its key was new; `kept` is what the store knows of it.
    """

    name: str
    trace_s: float
    lower_s: float
    compile_s: float
    wall_s: float
    load_s: float = 0.0
    origin: str = "compiler"
    missed: str | None = None
    kept: Record | None = None


def obtain(program: Program, cache: ProgramCache | None = None) -> tuple[jax.stages.Compiled, CompileRecord]:
    """Load a program where it is kept, else trace, lower and compile it in this thread, and keep it.

    Raises:
        CacheError: the cache requires its bundle, and the bundle does not have the program whole.
        LinkError: it calls what cannot be registered.
    """
    started = time.perf_counter()
    found = None if cache is None else cache.find(program)
    if cache is not None and found is not None and (loaded := cache.load(program, found)) is not None:
        return loaded, found_record(program, found, time.perf_counter() - started)
    compiled, record = _build(program, cache, started)
    assert compiled is not None
    return compiled, record


def _build(
    program: Program, cache: ProgramCache | None, started: float, *, load: bool = True
) -> tuple[jax.stages.Compiled | None, CompileRecord]:
    """Trace and lower; take what is kept of the same HLO (without `load` None for it), else compile and keep."""
    keeps = cache is not None and cache.store is not None
    with measured_phases() as phases, without_jax_cache() if keeps else nullcontext():
        lowered = program.lower()
        if cache is not None:
            begun = time.perf_counter()
            found = cache.find_lowered(program, lowered)
            loaded = cache.load(program, found) if found is not None and load else None
            if found is not None and (loaded is not None or not load):
                record = found_record(program, found, time.perf_counter() - begun)
                wall_s = time.perf_counter() - started
                return loaded, replace(record, trace_s=phases.trace_s, lower_s=phases.lower_s, wall_s=wall_s)
        missed = None if cache is None else cache.why_missing(program)
        if cache is not None and cache.require_bundle:
            raise RefusedError(f"the bundle has no program {program.name!r} like this one ({missed}). {cache.rebuild}")
        if cache is not None:
            cache.link(lowered.as_text().encode())
        hits_before = hits()
        compiled = lowered.compile(dict(program.compiler_options) or None)
        from_compiler = hits() == hits_before
    seconds = Seconds(phases.trace_s, phases.lower_s, phases.compile_s)
    kept = None if cache is None or not from_compiler else cache.keep(program, lowered, compiled, seconds)
    wall_s = time.perf_counter() - started
    return compiled, CompileRecord(
        program.name, seconds.trace, seconds.lower, seconds.compile, wall_s, missed=missed, kept=kept
    )


def found_record(program: Program, found: Found, load_s: float) -> CompileRecord:
    """The report of a program that was not compiled."""
    return CompileRecord(
        program.name, 0.0, 0.0, 0.0, wall_s=load_s, load_s=load_s, origin=found.place, kept=found.record
    )


def compile_programs(
    programs: Sequence[Program],
    *,
    threads: int | None = None,
    on_done: Callable[[CompileRecord, jax.stages.Compiled], None] | None = None,
    cache: ProgramCache | None = None,
) -> dict[str, tuple[jax.stages.Compiled, CompileRecord]]:
    """Obtain every program in parallel threads; the first failure stops the rest and is raised with the program's name.

    `on_done` is called in the order of completion, one call at a time.

    Raises:
        ValueError: two programs share a name.
        CacheError, LinkError: as `obtain`.
        RuntimeError: a program does not compile; the compiler's error is its cause.
    """
    done: dict[str, tuple[jax.stages.Compiled, CompileRecord]] = {}

    def finish(result: tuple[jax.stages.Compiled, CompileRecord]) -> None:
        compiled, record = result
        done[record.name] = result
        if on_done is not None:
            on_done(record, compiled)

    _in_parallel(programs, lambda program: obtain(program, cache), finish, threads)
    return done


def build_programs(
    programs: Sequence[Program],
    cache: ProgramCache,
    *,
    threads: int | None = None,
    on_done: Callable[[CompileRecord], None] | None = None,
) -> list[CompileRecord]:
    """Put every program into the cache's store without loading any: for devices that need not be here.

    What the store has whole is left alone, so a build that was killed goes on where it was, and two may run at once. The
    `origin` of such a program is `store`, and its `kept` is what is known of it.

    Raises:
        ValueError: two programs share a name.
        CacheError: the store cannot be written, or a program cannot be serialised.
        RuntimeError: a program does not compile.
    """
    done: list[CompileRecord] = []

    def work(program: Program) -> CompileRecord:
        started = time.perf_counter()
        found = cache.find(program)
        if found is not None and cache.is_whole(found):
            seconds = time.perf_counter() - started
            return found_record(program, found, seconds)
        _, record = _build(program, cache, started, load=False)
        if record.kept is None:
            raise CacheError(f"program {program.name!r} was compiled and could not be kept; the warning above says why")
        return record

    def finish(record: CompileRecord) -> None:
        done.append(record)
        if on_done is not None:
            on_done(record)

    _in_parallel(programs, work, finish, threads)
    return done


def _turn(program: Program) -> tuple[bool, float]:
    return program.calls_out, -program.weight


def _in_parallel(
    programs: Sequence[Program], work: Callable[[Program], Any], finish: Callable[[Any], None], threads: int | None
) -> None:
    names = [program.name for program in programs]
    if len(set(names)) != len(names):
        raise ValueError(
            f"program names must be unique, got {sorted(n for n in set(names) if names.count(n) > 1)} twice"
        )
    lock = threading.Lock()

    def run(program: Program) -> None:
        try:
            result = work(program)
        except (CacheError, LinkError):
            raise
        except Exception as error:
            raise RuntimeError(f"program {program.name!r} does not compile: {error}") from error
        with lock:
            finish(result)

    previous = threading.stack_size(THREAD_STACK_BYTES)
    try:
        with ThreadPoolExecutor(max_workers=threads or available_cores(), thread_name_prefix="compile") as pool:
            futures = [pool.submit(run, program) for program in sorted(programs, key=_turn)]
            finished, pending = wait(futures, return_when=FIRST_EXCEPTION)
            for future in pending:
                future.cancel()
            for future in finished:
                future.result()
    finally:
        threading.stack_size(previous)
