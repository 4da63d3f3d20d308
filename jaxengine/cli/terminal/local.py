"""An engine of this process behind the same API as any server: on a Unix socket in a directory that nobody else can enter."""

from __future__ import annotations

import logging
import socket
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jaxengine.cli.terminal.client import Client
from jaxengine.errors import JaxEngineError

QUIET = {"access_log": False, "uvicorn_log_level": "error", "log_stats_interval": 0.0}


@contextmanager
def local_server(options: Mapping[str, Any]) -> Iterator[Client]:
    """Start an engine with these options; a client of it. It ends with the block.

    Raises:
        ConfigError, CheckpointError, CapacityError: as `LLM`.
    """
    import uvicorn

    from jaxengine.device.weights.source import check_name
    from jaxengine.server.app import create_app
    from jaxengine.server.launch import uvicorn_config
    from jaxengine.server.options import read_options
    from jaxengine.server.service import Service
    from jaxengine.startup.device_half import load_builder

    engine_config, server_config = read_options({**options, **QUIET})
    check_name(engine_config.model.model)
    engine = load_builder(engine_config)(engine_config)
    try:
        service = Service.of(engine.front, server_config)
        logging.getLogger("jaxengine").setLevel(logging.ERROR)  # what follows is the terminal's
        with tempfile.TemporaryDirectory() as directory, socket.socket(socket.AF_UNIX) as listener:
            path = Path(directory) / "socket"
            listener.bind(str(path))
            server = uvicorn.Server(uvicorn_config(create_app(service), server_config))
            thread = threading.Thread(target=server.run, args=([listener],), name="server", daemon=True)
            thread.start()
            while not server.started:
                if not thread.is_alive():
                    raise JaxEngineError("the engine could not be reached; `jaxengine serve` shows why")
                time.sleep(0.005)
            try:
                yield Client("localhost", 0, socket=str(path))
            finally:
                server.should_exit = True
                thread.join(10)
    finally:
        engine.close()
