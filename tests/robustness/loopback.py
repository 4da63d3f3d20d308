"""A real server on loopback, in this process, so that a test can look at its engine too."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import httpx
import uvicorn

from jaxengine.options.config import EngineConfig
from jaxengine.server.app import create_app
from jaxengine.server.launch import uvicorn_config
from jaxengine.server.options import ServerConfig
from jaxengine.server.service import Service

if TYPE_CHECKING:
    from jaxengine.startup.build import Engine

T = TypeVar("T")

ENGINE: dict[str, Any] = {
    "max_num_seqs": 32,
    "max_num_batched_tokens": 64,
    "max_model_len": 512,
    "num_pages": 1025,
    "page_size": 16,
    "deterministic": True,
}
"""The embedded model, with few programs."""


def build(**options: Any) -> Engine:
    """An engine on the embedded model."""
    from jaxengine.startup.build import build_engine

    return build_engine(EngineConfig.from_options(**{**ENGINE, **options}))


class Loopback:
    """A server around an engine. It listens as soon as it is made, until `close`, which ends the engine's loop too."""

    def __init__(self, engine: Engine, **options: Any) -> None:
        self.engine = engine
        quiet = {"access_log": False, "uvicorn_log_level": "error"}
        self.service = Service.of(engine.front, ServerConfig.from_options(**{**quiet, **options}))
        self._lock = _lock_core(engine)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._server = uvicorn.Server(uvicorn_config(create_app(self.service), self.service.options))
        self._thread = threading.Thread(target=self._run, name="server", daemon=True)
        self._thread.start()
        until(lambda: self._server.started or not self._thread.is_alive(), "the server is up")

    def client(self, **options: Any) -> httpx.Client:
        """A client of this server. It loads no certificates, which takes longer than most tests."""
        defaults = {"base_url": self.url, "timeout": 60.0, "trust_env": False, "verify": False}
        return httpx.Client(**{**defaults, **options})

    def between_steps(self, look: Callable[[], T]) -> T:
        """What `look` returns while the engine's thread leaves the core alone."""
        with self._lock:
            return look()

    @property
    def steps(self) -> int:
        """Steps that the engine has run."""
        return self.service.engine.statistics.num_steps

    def check_idle(self) -> None:
        """Everything was given back: no sequence, no held page, no lost page."""
        core = self.engine.core
        until(lambda: not self.between_steps(lambda: core.has_unfinished), "the engine is idle")
        self.between_steps(core.check_idle)
        assert self.service.engine.num_open == 0

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join(30)
        self._listener.close()

    def _run(self) -> None:
        asyncio.run(self._server.serve(sockets=[self._listener]))


def _lock_core(engine: Engine) -> threading.Lock:
    """A lock that is held by whatever changes the core from now on."""
    lock, core = threading.Lock(), engine.core

    def locked(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            with lock:
                return method(*arguments)

        return call

    for name in ("add", "abort", "stop", "step"):
        setattr(core, name, locked(getattr(core, name)))
    return lock


def until(condition: Callable[[], bool], what: str, *, seconds: float = 30.0) -> None:
    """Wait for something that must come true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not true after {seconds:g} s: {what}"
        time.sleep(0.005)
