"""A real HTTP server on loopback around an engine without a model: every part is real but the device, a fake runner."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import uvicorn

from jaxengine.server.app import create_app
from jaxengine.server.http.protocol import BoundedProtocol
from jaxengine.server.options import ServerConfig
from jaxengine.server.service import Service
from jaxengine.startup.engine import HostedEngine
from tests.fakes import GatedRunner
from tests.fronts import make_engine, runner_of


class Live:
    """A server that runs in a thread of this process, with a client."""

    def __init__(self, engine: HostedEngine, **options: Any) -> None:
        self.engine = engine
        self.service = Service.of(engine.front, ServerConfig.from_options(**options))
        self.app = create_app(self.service)
        network = self.service.options.network
        config = uvicorn.Config(
            self.app,
            http=BoundedProtocol,
            port=0,
            log_level="error",
            lifespan="on",
            ws="none",
            timeout_graceful_shutdown=5,
            ssl_keyfile=network.ssl_keyfile,
            ssl_certfile=network.ssl_certfile,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run)
        self._thread.start()
        while not self._server.started:
            assert self._thread.is_alive(), "the server did not start"
        port = self._server.servers[0].sockets[0].getsockname()[1]
        self.url = f"{'https' if network.ssl_certfile else 'http'}://127.0.0.1:{port}"
        self.http = httpx.Client(base_url=self.url, timeout=30)

    def close(self) -> None:
        """Stop it, and prove that nothing was lost."""
        self.http.close()
        self._server.should_exit = True
        if isinstance(self.runner, GatedRunner):
            self.runner.open()
        self._thread.join(20)
        assert not self._thread.is_alive(), "the server did not stop"
        self.engine.core.check_idle()
        if self.engine.front.grammars is not None:
            self.engine.front.grammars.close()

    @property
    def runner(self) -> Any:
        """The fake device."""
        return runner_of(self.engine)

    def settle(self) -> None:
        """Wait until nothing runs: a text that ended at a stop string is known to the engine a little later."""
        deadline = time.monotonic() + 20
        while self.engine.core.has_unfinished:
            assert time.monotonic() < deadline, "a request goes on"
            time.sleep(0.001)

    def post(self, path: str, **body: Any) -> httpx.Response:
        """POST a JSON body."""
        return self.http.post(path, json=body)

    def events(self, path: str, **body: Any) -> list[str]:
        """The data of all events of a stream."""
        with self.http.stream("POST", path, json={**body, "stream": True}) as response:
            assert response.status_code == 200, response.read()
            assert response.headers["content-type"].startswith("text/event-stream")
            return [line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: ")]


@contextmanager
def live(engine: HostedEngine | None = None, **options: Any) -> Iterator[Live]:
    """A running server."""
    server = Live(engine or make_engine(), **options)
    try:
        yield server
    finally:
        server.close()
