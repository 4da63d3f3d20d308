"""Lower and compile many programs at once, the largest first."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

import jax

from xla_cache.events import measured_phases

# XLA's lowering recurses over the graph: an unrolled model of 80 layers overflows the default 8 MiB.
THREAD_STACK_BYTES = 64 << 20


@dataclass(frozen=True)
class Program:
    """A pure function and the one shape it is compiled for.

    `name` is unique among the programs of an engine and part of every cache key. `arguments` are `jax.ShapeDtypeStruct`s
    (with shardings where there is a mesh). `weight` orders compilation: the most expensive first.
    """

    name: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    donate: tuple[int, ...] = ()
    weight: float = 0.0
    mesh: Any = None
    platform: str | None = None

    def compile(self) -> tuple[jax.stages.Compiled, CompileRecord]:
        """Trace, lower and compile in this thread."""
        started = time.perf_counter()
        with measured_phases() as phases:
            jitted = jax.jit(self.function, donate_argnums=self.donate)
            if self.mesh is None:
                lowered = self._lower(jitted)
            else:
                with jax.set_mesh(self.mesh):
                    lowered = self._lower(jitted)
            compiled = lowered.compile()
        record = CompileRecord(
            name=self.name,
            trace_s=phases.trace_s,
            lower_s=phases.lower_s,
            compile_s=phases.compile_s,
            wall_s=time.perf_counter() - started,
        )
        return compiled, record

    def _lower(self, jitted: Any) -> jax.stages.Lowered:
        traced = jitted.trace(*self.arguments)
        platforms = None if self.platform is None else (self.platform,)
        lowered: jax.stages.Lowered = traced.lower(lowering_platforms=platforms)
        return lowered


@dataclass(frozen=True)
class CompileRecord:
    """Where the seconds of one program went. `wall_s` includes waiting for other threads."""

    name: str
    trace_s: float
    lower_s: float
    compile_s: float
    wall_s: float


def compile_programs(
    programs: Sequence[Program],
    *,
    threads: int | None = None,
    on_done: Callable[[CompileRecord, jax.stages.Compiled], None] | None = None,
) -> dict[str, tuple[jax.stages.Compiled, CompileRecord]]:
    """Compile every program in parallel threads; the first failure stops the rest and is raised with the program's name.

    `on_done` is called in the order of completion, one call at a time.

    Raises:
        ValueError: two programs share a name.
        RuntimeError: a program does not compile; the compiler's error is its cause.
    """
    names = [program.name for program in programs]
    if len(set(names)) != len(names):
        raise ValueError(
            f"program names must be unique, got {sorted(n for n in set(names) if names.count(n) > 1)} twice"
        )
    ordered = sorted(programs, key=lambda program: -program.weight)
    done: dict[str, tuple[jax.stages.Compiled, CompileRecord]] = {}
    lock = threading.Lock()

    def build(program: Program) -> None:
        try:
            compiled, record = program.compile()
        except Exception as error:
            raise RuntimeError(f"program {program.name!r} does not compile: {error}") from error
        with lock:
            done[program.name] = (compiled, record)
            if on_done is not None:
                on_done(record, compiled)

    previous = threading.stack_size(THREAD_STACK_BYTES)
    try:
        with ThreadPoolExecutor(max_workers=threads or os.cpu_count() or 1, thread_name_prefix="compile") as pool:
            futures = [pool.submit(build, program) for program in ordered]
            finished, pending = wait(futures, return_when=FIRST_EXCEPTION)
            for future in pending:
                future.cancel()
            for future in finished:
                future.result()
    finally:
        threading.stack_size(previous)
    return done
