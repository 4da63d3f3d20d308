"""The ends of a socket between two processes of one user. What passes is pickled, and never comes from a network."""

from __future__ import annotations

import pickle
import threading
from multiprocessing.connection import Connection
from typing import Any

PROTOCOL = 5


class Wire:
    """Sends and receives values, each whole and in order. Any thread may send, one at a time receives.

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
        data = pickle.dumps(value, PROTOCOL)
        with self._sending:
            self._connection.send_bytes(data)

    def receive(self) -> Any:
        """The next value; waits for it.

        Raises:
            EOFError, OSError: the other end is gone.
        """
        return pickle.loads(self._connection.recv_bytes())

    def is_silent(self, seconds: float) -> bool:
        """Whether nothing comes within so many seconds, not even the end."""
        return not self._connection.poll(seconds)

    def close(self) -> None:
        """Give up this end."""
        self._connection.close()
