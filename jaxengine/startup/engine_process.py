"""What the process of an engine does: it builds the engine that it is told, and runs its loop until the front has had enough.

The process ends with its front: an end of the socket that is gone is the end of all work here.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Protocol

from jaxengine.contract.facts import EngineFacts
from jaxengine.contract.messages import Alive, Begin, Close, EngineDead, EngineReady, Event, Message
from jaxengine.contract.wire import Wire
from jaxengine.errors import EngineDeadError, JaxEngineError
from jaxengine.grammar.sources import GrammarSources
from jaxengine.host.engine.host import EngineHost
from jaxengine.host.engine.loop import EngineLoop, Messages
from jaxengine.startup.device_half import load_builder
from jaxengine.startup.log import name_lines, show_log

logger = logging.getLogger("jaxengine")

HEARTBEAT_S = 1.0
ORPHAN_S = 10.0
"""How long an engine whose front is gone may take for the step in progress and its last work."""

PR_SET_PDEATHSIG = 1


def main(descriptor: int) -> None:
    """The whole life of the process; `descriptor` is its end of the socket."""
    serve(descriptor, _build)


def serve(descriptor: int, build: Callable[[Begin, Callable[[Event], None]], EngineHost]) -> None:
    """Build an engine as the front says, tell events, and take messages until there are no more.

    Args:
        descriptor: this process's end of the socket.
        build: makes the engine; the function that it is given tells an event.
    """
    live(descriptor, lambda begin, emit: _Loop(build(begin, emit)))


class Work(Protocol):
    """What a process is for, once that is built."""

    @property
    def facts(self) -> EngineFacts: ...

    def run(self, messages: Messages, emit: Callable[[Event], None]) -> None:
        """Work until there is no more to do. The last event is `EngineDead`."""
        ...


@dataclass(frozen=True)
class _Loop:
    """The loop of an engine."""

    host: EngineHost

    @property
    def facts(self) -> EngineFacts:
        return self.host.facts

    def run(self, messages: Messages, emit: Callable[[Event], None]) -> None:
        EngineLoop(self.host, messages, emit).run()
        self.host.close()


def live(descriptor: int, build: Callable[[Begin, Callable[[Event], None]], Work]) -> None:
    """What `serve` does, with whatever is built."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the front decides when running requests have had their time
        signal.signal(number, signal.SIG_IGN)
    os.set_inheritable(descriptor, False)
    far = _Front(Wire(Connection(descriptor)))
    try:
        begin = far.begin()
    except (EOFError, OSError):
        sys.exit(1)  # the front has given up the start
    show_log(begin.log_layout)
    if begin.config.parallel.nnodes > 1:
        name_lines(f"host {begin.config.parallel.node_rank}")
    if begin.config.parallel.data_parallel_size > 1:
        name_lines(f"engine {begin.config.parallel.data_parallel_rank}")
    logger.setLevel(begin.log_level)
    try:
        work = build(begin, far.emit)
    except JaxEngineError as error:
        dead = EngineDead(EngineDeadError("the engine could not be started"), error.with_traceback(None), cause="start")
        far.emit(dead)
        sys.exit(1)
    except Exception:
        logger.exception("the engine could not be started")
        dead = EngineDead(EngineDeadError("the engine could not be started, and the log says why"), cause="start")
        far.emit(dead)
        sys.exit(1)
    gc.collect()
    gc.freeze()  # what the start has left lives as long as the process
    far.emit(EngineReady(work.facts))
    far.is_ready = True
    work.run(far.messages, far.emit)


def _build(begin: Begin, emit: Callable[[Event], None]) -> EngineHost:
    build_engine = load_builder(begin.config)

    def prepare(grammars: GrammarSources) -> None:
        grammars.tokenizer.prepare()

    return build_engine(begin.config, prepare_grammars=prepare if begin.prepare_grammars else None, tell=emit).host


class _Front:
    """The other end, as threads of this process see it."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self.messages: SimpleQueue[Message] = SimpleQueue()
        self.is_ready = False

    def begin(self) -> Begin:
        """What is to be built. From now on messages are taken and a sign of life is given."""
        begin: Begin = self._wire.receive()
        die_with(begin.parent)
        threading.Thread(target=self._read, name="from front", daemon=True).start()
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()
        return begin

    def emit(self, event: Event) -> None:
        """Tell an event. A front that is gone is seen by the reader."""
        with suppress(OSError):
            self._wire.send(event)

    def _read(self) -> None:
        with suppress(EOFError, OSError):
            while True:
                self.messages.put(self._wire.receive())
        if self.is_ready:
            self.messages.put(Close())
            time.sleep(ORPHAN_S)
        os._exit(1)

    def _beat(self) -> None:
        while True:
            self.emit(Alive())
            time.sleep(HEARTBEAT_S)


def die_with(parent: int | None) -> None:
    """Have the system end this process with its parent, where it can (Linux): also when this one does not get to its threads.

    None where the parent's thread that started this process may end before the parent does: the system takes that for the end.
    """
    if parent is None or not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
