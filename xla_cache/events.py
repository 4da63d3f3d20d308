"""What JAX itself reports about compilation, through `jax.monitoring`."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import jax

TRACE = "/jax/core/compile/jaxpr_trace_duration"
LOWER = "/jax/core/compile/jaxpr_to_mlir_module_duration"
COMPILE = "/jax/core/compile/backend_compile_duration"


@dataclass
class PhaseSeconds:
    """Seconds spent tracing, lowering and compiling, as JAX measured them, and the names of what was compiled."""

    trace_s: float = 0.0
    lower_s: float = 0.0
    compile_s: float = 0.0
    names: list[str] = field(default_factory=list)

    @property
    def compilations(self) -> int:
        return len(self.names)


class _Dispatcher:
    """The one listener of this process: JAX keeps listeners for ever, so one is registered and counters come and go.

    Durations are also attributed to the thread that spent them, because programs are compiled in parallel.
    """

    def __init__(self) -> None:
        self.counters: set[CompileCounter] = set()
        self.local = threading.local()
        self.lock = threading.Lock()
        self.registered = False

    def ensure_registered(self) -> None:
        with self.lock:
            if not self.registered:
                jax.monitoring.register_event_duration_secs_listener(self.on_duration)
                self.registered = True

    def on_duration(self, event: str, duration_secs: float, **metadata: str | int) -> None:
        phases: PhaseSeconds | None = getattr(self.local, "phases", None)
        if phases is not None:
            if event == TRACE:
                phases.trace_s += duration_secs
            elif event == LOWER:
                phases.lower_s += duration_secs
            elif event == COMPILE:
                phases.compile_s += duration_secs
                phases.names.append(str(metadata.get("fun_name", "a program without a name")))
        if event == COMPILE and not getattr(self.local, "planned", False):
            for counter in tuple(self.counters):
                counter.add()


_DISPATCHER = _Dispatcher()


@contextmanager
def measured_phases() -> Iterator[PhaseSeconds]:
    """Collect what this thread spends on tracing, lowering and compiling inside the block."""
    _DISPATCHER.ensure_registered()
    outer = getattr(_DISPATCHER.local, "phases", None)
    phases = PhaseSeconds()
    _DISPATCHER.local.phases = phases
    try:
        yield phases
    finally:
        _DISPATCHER.local.phases = outer


@contextmanager
def planned_compilation() -> Iterator[None]:
    """What this thread compiles inside the block is meant to be compiled now: counters pass it over."""
    _DISPATCHER.local.planned = True
    try:
        yield
    finally:
        _DISPATCHER.local.planned = False


class CompileCounter:
    """Counts the compilations of this process that nobody planned, in any thread, from `start` to `stop`.

    After warm-up the count must stay 0: an engine holds one from ready to close and exports it.
    """

    def __init__(self) -> None:
        self.count = 0

    def start(self) -> CompileCounter:
        _DISPATCHER.ensure_registered()
        _DISPATCHER.counters.add(self)
        return self

    def stop(self) -> None:
        _DISPATCHER.counters.discard(self)

    def add(self) -> None:
        self.count += 1

    def __enter__(self) -> CompileCounter:
        return self.start()

    def __exit__(self, *exc_info: object) -> None:
        self.stop()
