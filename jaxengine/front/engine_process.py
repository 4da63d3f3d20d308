"""A channel to an engine in a process of its own.

    front                                          engine's process (startup/engine_process.py)
    send -> writer thread   -- Begin, messages -->   reader thread -> EngineLoop
    emit <- reader thread   <------- events ------   EngineLoop, heartbeat

The two are connected by a socket that nobody else can reach, and by nothing else: an end that is gone is seen by the other.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from queue import SimpleQueue

from jaxengine.contract.facts import EngineFacts
from jaxengine.contract.messages import (
    Alive,
    Begin,
    Cause,
    Close,
    EngineDead,
    EngineReady,
    Event,
    Message,
    ModelFound,
    StartProgress,
)
from jaxengine.contract.metrics import UNSUPERVISED, Condition
from jaxengine.contract.model_source import ModelSource
from jaxengine.contract.wire import Wire
from jaxengine.errors import EngineDeadError, JaxEngineError
from jaxengine.front.starting import StartPhases

logger = logging.getLogger("jaxengine")

ENTRY = "jaxengine.startup.engine_process"
"""The module whose `main` the process runs. It is named and not imported: it loads JAX."""

LAST_WORK_S = 10.0
"""How long a process may take to end once its engine has: traces and logs are written."""


class EngineProcess:
    """Starts a process that builds an engine and runs its loop. It is a `StartingEngine`, to be closed by whoever made it.

    The start begins at once. Events are kept until the channel is opened, so nothing is lost to who comes late.

    Args:
        begin: what the process is to build.
        environment: variables that the process has besides those of this one.
        entry: the module whose `main(descriptor)` runs there.

    Attributes:
        phases: how far the start is.
        source: where the model's files are, once they are found.
        ready: the facts, once messages are taken. Both have the error of a start that fails.
    """

    def __init__(self, begin: Begin, *, environment: Mapping[str, str] | None = None, entry: str = ENTRY) -> None:
        self.phases = StartPhases()
        self.source: Future[ModelSource] = Future()
        self.ready: Future[EngineFacts] = Future()
        self._kept: list[Event] = []
        self._emit: Callable[[Event], None] | None = None
        self._delivering = threading.Lock()
        self._closing = False
        here, there = multiprocessing.Pipe()
        with there:
            self._process = _start(there.fileno(), entry, {**os.environ, **(environment or {})})
        self._wire = Wire(here)
        self._outgoing: SimpleQueue[Begin | Message | None] = SimpleQueue()
        # A thread that may end before this process does must not be what the other is tied to.
        parent = os.getpid() if threading.current_thread() is threading.main_thread() else None
        self._outgoing.put(replace(begin, parent=parent))
        self._reader = threading.Thread(target=self._read, name="from engine", daemon=True)
        self._reader.start()
        threading.Thread(target=self._write, name="to engine", daemon=True).start()

    @property
    def facts(self) -> EngineFacts:
        """What is true of the engine, which is ready."""
        assert self.ready.done(), "the engine is not ready"
        return self.ready.result()

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    def open(self, emit: Callable[[Event], None]) -> None:
        """Hand on every event, from the first of the start; those that come from now on on a thread of the channel."""
        with self._delivering:
            for event in self._kept:
                emit(event)
            self._kept.clear()
            self._emit = emit

    def send(self, message: Message) -> None:
        """Pass a message on. What is sent to a process that has ended is lost."""
        self._closing = self._closing or isinstance(message, Close)
        self._outgoing.put(message)

    @property
    def is_alive(self) -> bool:
        """Whether the process runs, or its last event has not been handed on."""
        return self._reader.is_alive()

    @property
    def condition(self) -> Condition:
        """It dies once."""
        return UNSUPERVISED

    def join(self, timeout_s: float) -> None:
        """Wait for the end of the process, at most so long."""
        self._reader.join(timeout_s)

    def kill(self) -> None:
        """End the process now, whatever it does. `EngineDead` follows."""
        self._process.kill()

    def close(self) -> None:
        """End the process: after the step in progress, or at once while it starts. Closing twice is fine."""
        if self.is_alive and self.ready.done() and not self._closing:
            self.send(Close())
            self.join(LAST_WORK_S)
        self.kill()
        self.join(LAST_WORK_S)

    def _read(self) -> None:
        """Hand on events until the process has ended, `EngineDead` as the last one."""
        last: EngineDead | None = None
        with suppress(EOFError, OSError):
            while last is None:
                event: Event = self._wire.receive()
                if isinstance(event, EngineDead):
                    last = event
                else:
                    self._take(event)
        if last is None or self._wire.is_silent(LAST_WORK_S):
            self._process.kill()  # its end of the socket is closed: whatever it does, nobody will hear of it
        status = self._process.wait()
        self._outgoing.put(None)
        end = EngineDead(EngineDeadError(describe_end(status)), cause=_cause(status))
        self._die(last or end)

    def _write(self) -> None:
        with suppress(OSError):  # the process has ended, which the reader tells
            while (message := self._outgoing.get()) is not None:
                self._wire.send(message)

    def _take(self, event: Event) -> None:
        match event:
            case StartProgress():
                self.phases.take(event)
            case ModelFound(source):
                self.source.set_result(source)
            case EngineReady(facts):
                self.ready.set_result(facts)
        self._deliver(event)

    def _die(self, dead: EngineDead) -> None:
        if self.ready.done() and not self._closing:
            logger.log(logging.INFO if dead.elsewhere else logging.ERROR, "%s", dead.error)
        error: JaxEngineError = dead.start_error or dead.error
        for future in (self.source, self.ready):
            if not future.done():
                future.set_exception(error)
        self._deliver(dead)
        self._wire.close()

    def _deliver(self, event: Event) -> None:
        with self._delivering:
            if self._emit is not None:
                self._emit(event)
            elif not isinstance(event, Alive):
                self._kept.append(event)


def _cause(status: int) -> Cause:
    if status == -signal.SIGKILL:
        return "killed"
    return "signal" if status < 0 else "exit"


def describe_end(status: int) -> str:
    """Why a process is gone, by its exit status as `subprocess` has it."""
    if status >= 0:
        return f"the engine's process has ended with status {status}, and the server's log says why"
    name = signal.Signals(-status).name
    hint = " (by hand, or by the system for lack of memory)" if name == "SIGKILL" else ""
    return f"the engine's process was ended by {name}{hint}"


def _start(descriptor: int, entry: str, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """A fresh interpreter with this one's import path. Its output goes where ours does."""
    # `-P` and the path by name: no module is found in the working directory that this process would not find there.
    script = (
        f"import sys; sys.path[:] = {json.dumps(sys.path)}; from importlib import import_module; "
        f"import_module({entry!r}).main({descriptor})"
    )
    return subprocess.Popen([sys.executable, "-P", "-c", script], pass_fds=[descriptor], env=environment)
