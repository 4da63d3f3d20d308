"""The ends of a socket between two processes of one user. What passes is pickled, and never comes from a network."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

PROTOCOL = 5
BESIDE = 1 << 16
"""Bytes from which on an array passes beside its message: only the kernel copies it then, and no other thread waits for that."""
SIZES = b"S"
"""What announces arrays beside the next message, before their sizes; no pickle begins so."""


class Wire:
    """Sends and receives values, each whole and in order. Any thread may send, one at a time receives.

    Large arrays, as those of pictures, pass beside their message and may be written to where they arrive.

    Args:
        connection: one end, which closes with this.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._sending = threading.Lock()

    def send(self, value: Any) -> None:
        """Pass a value on; waits while the other end has much to read already.

        Raises:
            OSError: the other end is gone.
        """
        beside: list[memoryview] = []

        def is_small(buffer: pickle.PickleBuffer) -> bool:
            raw = buffer.raw()
            if raw.nbytes >= BESIDE:
                beside.append(raw)
            return raw.nbytes < BESIDE

        data = pickle.dumps(value, PROTOCOL, buffer_callback=is_small)
        with self._sending:
            if beside:
                self._connection.send_bytes(SIZES + b" ".join(str(raw.nbytes).encode() for raw in beside))
            self._connection.send_bytes(data)
            for raw in beside:
                self._write(raw)

    def receive(self) -> Any:
        """The next value; waits for it.

        Raises:
            EOFError, OSError: the other end is gone.
        """
        data = self._connection.recv_bytes()
        if not data.startswith(SIZES):
            return pickle.loads(data)
        sizes = [int(size) for size in data[len(SIZES) :].split()]
        data = self._connection.recv_bytes()
        return pickle.loads(data, buffers=self._read(sizes))

    def is_silent(self, seconds: float) -> bool:
        """Whether nothing comes within so many seconds, not even the end."""
        return not self._connection.poll(seconds)

    def close(self) -> None:
        """Give up this end."""
        self._connection.close()

    def _write(self, raw: memoryview) -> None:
        while raw:
            raw = raw[os.write(self._connection.fileno(), raw) :]

    def _read(self, sizes: Sequence[int]) -> list[bytearray]:
        arrived = []
        for size in sizes:
            array = bytearray(size)
            left = memoryview(array)
            while left:
                count = os.readv(self._connection.fileno(), [left])
                if not count:
                    raise EOFError("the other end is gone")
                left = left[count:]
            arrived.append(array)
        return arrived
