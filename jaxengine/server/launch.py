"""Brings a server up and down: the address first, then the engine, then requests, until a signal."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import uvicorn

from jaxengine.errors import ConfigError, EngineDeadError
from jaxengine.front.front import Front
from jaxengine.server.app import create_app
from jaxengine.server.http.hosts import known_hosts
from jaxengine.server.http.protocol import BoundedProtocol
from jaxengine.server.options import NetworkConfig, ServerConfig
from jaxengine.server.service import Service

logger = logging.getLogger("jaxengine")

SWITCH_INTERVAL_S = 0.0005
"""How long the event loop may hold the interpreter while the engine's thread wants it (Python's default is 5 ms).

The engine's thread wants it when a step is done, and the device waits for the next launch. Shorter is no better: the event loop
wants it back as often. Two runs of `benchmarks/idle.py` with 10 ms a step, on two busy cores, idled 11 and 14 % with 0.1 ms,
5 and 3 % with 0.5 ms, 7 and 12 % with 5 ms.
"""

LAST_WORDS_S = 2.0
"""Time for streams to end once their requests were given up."""


def run(build: Callable[[], Front], options: ServerConfig) -> int:
    """Serve until SIGINT or SIGTERM; the exit status. `build` starts the engine, once the address is known to be free.

    Raises:
        ConfigError: the address, an API key or an allowed host cannot be used.
    """
    known_hosts(options)  # which checks keys and hosts: a mistake is told before the engine is built
    listener = _listen(options.network)
    try:
        front = build()
        _prepare_interpreter()
        service = Service.of(front, options)
        server = _Server(uvicorn_config(service), service, greeting=_greeting(service, listener))
        try:
            server.run(sockets=[listener])
        finally:
            front.close()
    finally:
        listener.close()
        if options.network.uds is not None:
            os.unlink(options.network.uds)
    return 0


class _Server(uvicorn.Server):
    """uvicorn, which tells the engine that the end is near."""

    def __init__(self, config: uvicorn.Config, service: Service, *, greeting: str) -> None:
        super().__init__(config)
        self._service = service
        self._greeting = greeting

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen, and say so."""
        await super().startup(sockets)
        logger.info("%s", self._greeting)

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
        engine, seconds = self._service.engine, self._service.options.limits.shutdown_timeout
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


def _listen(network: NetworkConfig) -> socket.socket:
    """Take the address; connections are refused until the engine is ready."""
    if network.uds is not None:
        listener = socket.socket(socket.AF_UNIX)
        address: object = network.uds
    else:
        family = socket.AF_INET6 if ":" in network.host else socket.AF_INET
        listener = socket.socket(family)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        address = (network.host, network.port)
    try:
        listener.bind(address)  # type: ignore[arg-type]
    except OSError as error:
        listener.close()
        where = network.uds or f"{network.host}:{network.port}"
        raise ConfigError(
            f"cannot listen on {where}: {error.strerror}. Choose another --host, --port or --uds"
        ) from error
    return listener


def uvicorn_config(service: Service) -> uvicorn.Config:
    """How uvicorn serves the app of `service`."""
    network = service.options.network
    return uvicorn.Config(
        create_app(service),
        http=BoundedProtocol,
        log_config=None,  # uvicorn's lines go where those of jaxengine go
        log_level=network.uvicorn_log_level,
        access_log=network.access_log,
        ssl_keyfile=network.ssl_keyfile,
        ssl_certfile=network.ssl_certfile,
        ssl_ca_certs=network.ssl_ca_certs,
        ssl_cert_reqs=ssl.VerifyMode(network.ssl_cert_reqs),
        timeout_graceful_shutdown=int(service.options.limits.shutdown_timeout + LAST_WORDS_S + 1),
        server_header=False,
        proxy_headers=False,
        ws="none",
        lifespan="on",
    )


def _greeting(service: Service, listener: socket.socket) -> str:
    """Where the server is, and a line to try it with."""
    network = service.options.network
    if network.uds is not None:
        return f"listening on {network.uds}"
    host, port = listener.getsockname()[:2]
    scheme = "https" if network.ssl_certfile else "http"
    place = f"[{host}]" if ":" in host else host
    url = f"{scheme}://{place}:{port}{network.root_path}"
    only = " (this machine only; --host 0.0.0.0 for others)" if host in ("127.0.0.1", "::1") else ""
    return (
        f"listening on {url}{only}\n"
        f"  try: curl {url}/v1/completions -H 'Content-Type: application/json' "
        f'-d \'{{"prompt": "Once upon a time", "max_tokens": 40}}\''
    )
