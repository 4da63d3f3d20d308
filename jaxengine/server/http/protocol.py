"""HTTP as uvicorn speaks it, with bounds on what a client may send before anything can judge it."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 1 << 16
"""Request line and headers; the chunk in which they end is not counted."""

MAX_UNSENT_BYTES = 1 << 17
"""Bytes that the kernel takes for a client whose window is full: else it is megabytes, and a stream goes on that nobody reads."""

RECEIVE_TIMEOUT_S = 60.0
"""From a connection (or the first byte of a further request on it) to the end of the request's body."""


class BoundedProtocol(HttpToolsProtocol):
    """Hangs up on heads without end and on requests that do not come to an end.

    uvicorn bounds neither: headers are collected for as long as they come, and a client that sends nothing keeps its connection.
    """

    max_head_bytes = MAX_HEAD_BYTES
    receive_timeout_s = RECEIVE_TIMEOUT_S

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._in_head = True
        self._head_bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has connected: its first request has to come in time."""
        super().connection_made(transport)
        connection = transport.get_extra_info("socket")
        if connection is not None and connection.family in (socket.AF_INET, socket.AF_INET6):
            with suppress(OSError, AttributeError):  # Linux and macOS have it
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, MAX_UNSENT_BYTES)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended."""
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes of a request."""
        super().data_received(data)
        if self._in_head and not self.transport.is_closing():
            self._head_bytes += len(data)
            if self._head_bytes > self.max_head_bytes:
                self.send_400_response(f"The request's headers are longer than {self.max_head_bytes} bytes.")

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self._in_head = True
        self._start_timer()

    def on_headers_complete(self) -> None:
        """Its head has come."""
        self._in_head = False
        self._head_bytes = 0
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """All of it has come."""
        self._stop_timer()
        super().on_message_complete()

    def timeout_keep_alive_handler(self) -> None:
        """Nothing has come for a while. A busy event loop comes to say so late: what has come by then is read first."""
        self._hang_up(turns=2)

    def _hang_up(self, turns: int) -> None:
        """Close after so many turns of the loop, each of which reads what has come: that takes `timeout_keep_alive_task` back."""
        if turns:
            self.timeout_keep_alive_task = self.loop.call_soon(self._hang_up, turns - 1)  # type: ignore[assignment]
        else:
            super().timeout_keep_alive_handler()

    def _start_timer(self) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(self.receive_timeout_s, self.transport.close)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
