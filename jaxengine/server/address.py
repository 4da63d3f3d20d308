"""Where a server listens. It is taken before anything large is loaded: a mistake is told first."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from jaxengine.errors import ConfigError
from jaxengine.server.options import NetworkConfig, ServerConfig


@contextmanager
def listening(network: NetworkConfig) -> Iterator[socket.socket]:
    """A socket with the address; connections are refused until a server listens on it.

    Raises:
        ConfigError: the address cannot be used.
    """
    listener = _bind(network)
    try:
        yield listener
    finally:
        listener.close()
        if network.uds is not None:
            os.unlink(network.uds)


def url_of(listener: socket.socket, network: NetworkConfig) -> str:
    """Where clients find it."""
    if network.uds is not None:
        return network.uds
    host, port = listener.getsockname()[:2]
    scheme = "https" if network.ssl_certfile else "http"
    place = f"[{host}]" if ":" in host else host
    return f"{scheme}://{place}:{port}{network.root_path}"


def greeting(listener: socket.socket, options: ServerConfig) -> str:
    """Where the server and its pages are, and a line to try it with."""
    network = options.network
    url = url_of(listener, network)
    if network.uds is not None:
        return f"listening on {url}"
    local = listener.getsockname()[0] in ("127.0.0.1", "::1")
    only = " (this machine only; --host 0.0.0.0 for others)" if local else ""
    pages = (
        f"  in a browser: {url}/ to talk to the model, {url}/dashboard to watch the engine\n" if options.api.ui else ""
    )
    return (
        f"listening on {url}{only}\n{pages}"
        f"  try: curl {url}/v1/completions -H 'Content-Type: application/json' "
        f'-d \'{{"prompt": "Once upon a time", "max_tokens": 40}}\''
    )


def _bind(network: NetworkConfig) -> socket.socket:
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
