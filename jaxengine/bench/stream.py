"""One streamed request to a server of OpenAI's API, and when its tokens came."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import h11

from jaxengine.errors import ConfigError

READ_BYTES = 1 << 16
ERROR_CHARACTERS = 300


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where requests go: `http` or `https`, and `headers` of every request."""

    host: str
    port: int
    path: str
    tls: bool = False
    headers: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, url: str, path: str, headers: Mapping[str, str]) -> Endpoint:
        """Of a base URL such as `http://127.0.0.1:8000` and the path of an endpoint.

        Raises:
            ConfigError: the URL names no host, or is neither of http nor of https.
        """
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"base_url must be like http://127.0.0.1:8000, got {url!r}")
        tls = parts.scheme == "https"
        return cls(
            parts.hostname,
            parts.port or (443 if tls else 80),
            parts.path.rstrip("/") + path,
            tls,
            tuple(headers.items()),
        )


@dataclass(slots=True)
class Timing:
    """A request as its client saw it; times in seconds since it was sent. `error` is empty where it was answered whole."""

    prompt_len: int
    first_s: float = 0.0
    total_s: float = 0.0
    gaps_s: list[float] = field(default_factory=list)
    """Between one message with text and the next."""
    output_len: int = 0
    error: str = ""

    @property
    def per_token_s(self) -> float | None:
        """Seconds per token after the first; None where there is but one."""
        return (self.total_s - self.first_s) / (self.output_len - 1) if self.output_len > 1 else None


async def timed(endpoint: Endpoint, body: Mapping[str, Any], prompt_len: int) -> Timing:
    """Send a request that streams, and read it to its end. Failures are told in the result."""
    timing = Timing(prompt_len)
    begun = last = time.perf_counter()
    messages, counted = 0, None
    try:
        async for data in events(endpoint, json.dumps(body).encode()):
            now = time.perf_counter()
            if data == b"[DONE]":
                continue
            message = json.loads(data)
            if "error" in message:
                raise AnswerError(str(message["error"]))
            counted = (message.get("usage") or {}).get("completion_tokens", counted)
            if any(map(_has_text, message.get("choices") or ())):
                if messages:
                    timing.gaps_s.append(now - last)
                else:
                    timing.first_s = now - begun
                messages, last = messages + 1, now
        timing.total_s = last - begun
        timing.output_len = messages if counted is None else counted
        if not messages:
            timing.error = "the answer has no text"
    except (OSError, EOFError, ValueError, h11.ProtocolError, AnswerError) as error:
        timing.error = f"{type(error).__name__}: {error}"[:ERROR_CHARACTERS]
    return timing


def _has_text(choice: Mapping[str, Any]) -> bool:
    delta = choice.get("delta") or choice
    # A token may have no text of its own (part of a character): the chunk with it says where it ends or is a token all the same.
    return any(delta.get(key) is not None for key in ("text", "content", "reasoning", "reasoning_content"))


class AnswerError(Exception):
    """An answer that is an error."""


async def events(endpoint: Endpoint, body: bytes) -> AsyncIterator[bytes]:
    """POST `body` on a connection of its own; the data of each event that the server sends.

    Raises:
        AnswerError: the status is not 200.
        EOFError: the connection ended before the answer did.
    """
    reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port, ssl=endpoint.tls or None)
    try:
        connection = h11.Connection(our_role=h11.CLIENT)
        headers = [
            ("Host", f"{endpoint.host}:{endpoint.port}"),
            ("Content-Type", "application/json"),
            ("Content-Length", str(len(body))),
            ("Connection", "close"),
            *endpoint.headers,
        ]
        for event in (
            h11.Request(method="POST", target=endpoint.path, headers=headers),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ):
            writer.write(connection.send(event) or b"")
        await writer.drain()
        status, rest = 0, b""
        while True:
            received = connection.next_event()
            if received is h11.NEED_DATA:
                piece = await reader.read(READ_BYTES)
                if not piece and connection.their_state is not h11.SEND_BODY:
                    raise EOFError("the server closed the connection")
                connection.receive_data(piece)
            elif isinstance(received, h11.Response):
                status = received.status_code
            elif isinstance(received, h11.Data):
                rest += bytes(received.data)
                if status != 200:
                    continue
                *lines, rest = rest.split(b"\n")
                for line in lines:
                    if line.startswith(b"data:"):
                        yield line.removeprefix(b"data:").strip()
            elif isinstance(received, h11.EndOfMessage):
                break
            elif isinstance(received, h11.ConnectionClosed):
                raise EOFError("the server closed the connection")
        if status != 200:
            raise AnswerError(f"{status}: {rest.decode(errors='replace')}")
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
