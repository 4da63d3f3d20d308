"""A client of a server of OpenAI's API that needs no package: JSON over HTTP, answers as they come, by TCP or a Unix socket."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from jaxengine.errors import ConfigError, JaxEngineError

DEFAULT_URL = "http://localhost:8000/v1"


class ServerError(JaxEngineError):
    """The server did not answer, or said why it will not."""


@dataclass(frozen=True)
class Client:
    """Where requests go. `base` is the path before `/v1`, `socket` a Unix socket in place of host and port."""

    host: str
    port: int
    base: str = ""
    tls: bool = False
    key: str | None = None
    socket: str | None = None

    @classmethod
    def of(cls, url: str, key: str | None = None) -> Client:
        """Of a URL such as `http://localhost:8000`, with or without `/v1` at its end.

        Raises:
            ConfigError: it names no host, or is neither of http nor of https.
        """
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"url must be like {DEFAULT_URL}, got {url!r}")
        tls = parts.scheme == "https"
        base = parts.path.rstrip("/").removesuffix("/v1")
        return cls(parts.hostname, parts.port or (443 if tls else 80), base, tls, key)

    def models(self) -> list[str]:
        """The names of the models that the server has."""
        with self._sent("GET", "/v1/models", None) as response:
            return [str(model["id"]) for model in json.load(response)["data"]]

    def text(self, path: str) -> str:
        """What there is at a path, such as `/metrics`."""
        with self._sent("GET", path, None) as response:
            return response.read().decode()

    def events(self, path: str, body: Mapping[str, Any]) -> Generator[Any]:
        """The events of a streamed answer. Closing the iterator ends the request.

        Raises:
            ServerError: the server refuses it, goes away, or sends an error among the events.
        """
        with self._sent("POST", path, {**body, "stream": True}) as response:
            for line in response:
                if not line.startswith(b"data:"):
                    continue
                data = line[5:].strip()
                if data == b"[DONE]":
                    return
                event = json.loads(data)
                if "error" in event:
                    raise ServerError(_reason(event))
                yield event

    @contextmanager
    def _sent(self, method: str, path: str, body: Any) -> Iterator[http.client.HTTPResponse]:
        connection = self._connection()
        headers = {"Content-Type": "application/json"}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        try:
            connection.request(method, self.base + path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            if response.status != 200:
                raise ServerError(self._refused(response))
            yield response
        except (OSError, http.client.HTTPException, ValueError) as error:
            where = self.socket or f"{self.host}:{self.port}"
            raise ServerError(f"no server of OpenAI's API answers at {where}: {error}") from error
        finally:
            connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        if self.socket is not None:
            return _UnixConnection(self.socket)
        if self.tls:
            return http.client.HTTPSConnection(self.host, self.port, context=ssl.create_default_context())
        return http.client.HTTPConnection(self.host, self.port)

    def _refused(self, response: http.client.HTTPResponse) -> str:
        if response.status == 401:
            return "the server wants an API key: give --api-key" if not self.key else "the server refuses this API key"
        text = response.read(1 << 16).decode(errors="replace")
        try:
            return _reason(json.loads(text))
        except ValueError:
            return f"the server answers {response.status}: {text[:300]}"


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost")
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self._path)


def _reason(body: Any) -> str:
    error = body.get("error", body) if isinstance(body, dict) else body
    return str(error.get("message", error) if isinstance(error, dict) else error)
