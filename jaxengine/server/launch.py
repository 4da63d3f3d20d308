"""Brings a server up and down: it answers requests when the engine is ready, until a signal."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from jaxengine.errors import EngineDeadError
from jaxengine.front.front import Front
from jaxengine.front.replicas import supervised
from jaxengine.front.starting import StartingEngine
from jaxengine.front.supervisor import Launcher, Supervisor
from jaxengine.options.config import EngineConfig
from jaxengine.server.address import greeting, url_of
from jaxengine.server.app import create_app
from jaxengine.server.door import Door
from jaxengine.server.formats import Formats
from jaxengine.server.http.hosts import known_hosts
from jaxengine.server.http.protocol import BoundedProtocol
from jaxengine.server.options import ServerConfig
from jaxengine.server.service import EMBEDDED, Service
from jaxengine.server.starting import starting_app

logger = logging.getLogger("jaxengine")

SWITCH_INTERVAL_S = 0.0005
"""How long the event loop may hold the interpreter while the engine's thread wants it (Python's default is 5 ms).

The engine's thread wants it when a step is done, and the device waits for the next launch. Shorter is no better: the event loop
wants it back as often. Two runs of `benchmarks/idle.py` with 10 ms a step, on two busy cores, idled 11 and 14 % with 0.1 ms,
5 and 3 % with 0.5 ms, 7 and 12 % with 5 ms.
"""

LAST_WORDS_S = 2.0
"""Time for streams to end once their requests were given up."""


def run(listener: socket.socket, build: Callable[[], Front], options: ServerConfig) -> int:
    """Build an engine on a thread of this process and serve until SIGINT or SIGTERM; the exit status.

    Raises:
        ConfigError: an API key or an allowed host cannot be used.
    """
    known_hosts(options)  # which checks keys and hosts: a mistake is told before the engine is built
    front = build()
    front = replace(front, channel=Supervisor([front.channel], options=options.engines.supervision))
    try:
        _prepare_interpreter()
        service = Service.of(front, options)
        server = _Server(uvicorn_config(create_app(service), options), options, greeting(listener, options))
        server.service = service
        server.run(sockets=[listener])
    finally:
        front.close()
    return 0


def run_beside(
    listener: socket.socket,
    engines: Sequence[StartingEngine],
    options: ServerConfig,
    *,
    config: EngineConfig,
    launch: Launcher | None = None,
) -> int:
    """Serve, until SIGINT or SIGTERM, engines that start elsewhere; the exit status. Until all are ready the server says so.

    Args:
        listener: the address.
        engines: the engines, closed when this returns.
        options: those of the server.
        config: the options of the engines.
        launch: starts another in the place of one, when it has died.

    Raises:
        ConfigError: an API key or an allowed host cannot be used, or the model does not allow an option.
        JaxEngineError: an engine does not start.
    """
    fronts: list[Front] = []

    def make() -> Service:
        check = partial(Formats.choose, options.api)
        front = Front.beside(engines[0], check=check, prepare_grammars=True)
        fronts.append(front)
        channel = supervised(engines, launch, options=options.engines.supervision)
        # Of the options the first engine tells what they came to, and of several that it is the first.
        fronts[0] = replace(front, channel=channel, config=replace(front.config, parallel=config.parallel))
        return Service.of(fronts[0], options)

    hello = greeting(listener, options)

    def on_open(service: Service) -> None:
        _prepare_interpreter()
        server.service = service
        logger.info("%s", hello)

    def on_failure() -> None:
        server.should_exit = True

    try:
        phases = {rank: engine.phases for rank, engine in zip(config.parallel.ranks, engines, strict=True)}
        starting = starting_app(phases, options, model_name=options.model_names(config.model.model or EMBEDDED)[0])
        door = Door(engines, starting, make, on_open=on_open, on_failure=on_failure)
        where = url_of(listener, options.network)
        server = _Server(uvicorn_config(door, options), options, f"{where} answers 503 until the engine is ready")
        server.run(sockets=[listener])
    finally:
        for engine in engines:
            engine.close()
        for front in fronts:
            front.close()
    if door.error is not None:
        raise door.error
    return 0 if door.opened else 128 + server.signal


class _Server(uvicorn.Server):
    """uvicorn, which tells the engine that the end is near."""

    def __init__(self, config: uvicorn.Config, options: ServerConfig, first_line: str) -> None:
        super().__init__(config)
        self.service: Service | None = None
        self.signal = 0
        self._options = options
        self._first_line = first_line

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen, and say so."""
        await super().startup(sockets)
        logger.info("%s", self._first_line)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle the signals that end a server; once it has ended they have nothing to end."""
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                # One more while the engine closes and the process ends must not make a failure of it.
                signal.signal(number, signal.SIG_IGN if self.should_exit else handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal lets running requests finish, for as long as is allowed; the second ends at once."""
        super().handle_exit(sig, frame)
        self.signal = sig
        if self.service is None:
            logger.info("%s: the start is given up", signal.Signals(sig).name)
            return
        engine, seconds = self.service.engine, self._options.limits.shutdown_timeout
        loop = asyncio.get_running_loop()
        if self.force_exit:
            loop.call_soon_threadsafe(engine.fail_all, EngineDeadError("the server was stopped"))
            return
        engine.drain()
        if engine.num_open:
            logger.info(
                "%s: %d requests have %g s to finish; again to stop at once",
                signal.Signals(sig).name,
                engine.num_open,
                seconds,
            )
        late = EngineDeadError(f"the server is shutting down and the request was not done within {seconds:g} s")
        loop.call_soon_threadsafe(lambda: loop.call_later(seconds, engine.fail_all, late))


def _prepare_interpreter() -> None:
    """Keep the pauses short in which the interpreter belongs to one thread or to the garbage collector."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.collect()
    gc.freeze()  # what the start has left lives as long as the process: there is no use in looking through it again
    with suppress(AttributeError, OSError):  # C libraries other than GNU's have no such call
        ctypes.CDLL(None).malloc_trim(0)  # what it has not left goes back: 28 of 153 MB with a vocabulary of 150,000


def uvicorn_config(app: ASGIApp, options: ServerConfig) -> uvicorn.Config:
    """How uvicorn serves an app."""
    network = options.network
    return uvicorn.Config(
        app,
        http=BoundedProtocol,
        log_config=None,  # uvicorn's lines go where those of jaxengine go
        log_level=network.uvicorn_log_level,
        access_log=network.access_log,
        ssl_keyfile=network.ssl_keyfile,
        ssl_certfile=network.ssl_certfile,
        ssl_ca_certs=network.ssl_ca_certs,
        ssl_cert_reqs=ssl.VerifyMode(network.ssl_cert_reqs),
        timeout_graceful_shutdown=int(options.limits.shutdown_timeout + LAST_WORDS_S + 1),
        server_header=False,
        proxy_headers=False,
        ws="none",
        lifespan="on",
    )
