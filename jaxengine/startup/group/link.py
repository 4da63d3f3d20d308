"""One connection between two hosts of a group: whole messages, in order.

What the first host sends is pickled: the others trust the address that they were given. What the others send is JSON, so that
whoever reaches the first host's port can make it run nothing. Both ends prove that they know the same key before that.
"""

from __future__ import annotations

import os
import socket
import threading
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge

GREETING_S = 10.0
"""How long the other end may take to prove that it knows the key."""


class Link:
    """One end. Any thread may send, one at a time receives."""

    def __init__(self, connected: socket.socket) -> None:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.settimeout(None)
        self._socket = connected
        self._connection = Connection(os.dup(connected.fileno()))
        self._sending = threading.Lock()

    def send(self, message: bytes) -> None:
        """Pass a message on; waits while the other end has much to read already.

        Raises:
            OSError: the other end is gone.
        """
        with self._sending:
            self._connection.send_bytes(message)

    def receive(self) -> bytes:
        """The next message; waits for it.

        Raises:
            EOFError, OSError: the other end is gone.
        """
        return self._connection.recv_bytes()

    def close(self) -> None:
        """Give up this end: both ends' threads that wait for a message see it."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def close_after_other(self, seconds: float) -> None:
        """Give up this end when the other has read all and given up its own, or after so long."""
        late = threading.Timer(seconds, self.close)
        late.start()
        with suppress(EOFError, OSError):
            while True:
                self.receive()
        late.cancel()
        self.close()


def welcome(connected: socket.socket, key: bytes) -> Link:
    """The first host's end of a connection that came.

    Raises:
        AuthenticationError, EOFError, OSError: it was not made by a host of this group.
    """
    return _proven(connected, key, first=True)


def reach(address: str, port: int, key: bytes) -> Link:
    """Another host's end of a connection to the first.

    Raises:
        AuthenticationError: that one has another key.
        EOFError, OSError: nobody listens there, or it does not answer.
    """
    return _proven(socket.create_connection((address, port), timeout=GREETING_S), key, first=False)


def _proven(connected: socket.socket, key: bytes, *, first: bool) -> Link:
    link = Link(connected)
    late = threading.Timer(GREETING_S, link.close)  # multiprocessing's greeting has no time limit of its own
    late.start()
    try:
        for step in (deliver_challenge, answer_challenge) if first else (answer_challenge, deliver_challenge):
            step(link._connection, key)
    except (AuthenticationError, EOFError, OSError):
        link.close()
        raise
    finally:
        late.cancel()
    return link
