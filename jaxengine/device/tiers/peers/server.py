"""Serves the blocks of a shelf to other engines: over TCP, and to those on this machine through shared memory."""

from __future__ import annotations

import errno
import logging
import secrets
import socket
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass

from jaxengine.device.tiers.peers.messages import (
    LOCAL_NAME_BYTES,
    LONGEST_QUESTION,
    Ask,
    Found,
    Question,
    pack_found,
)
from jaxengine.device.tiers.peers.session import RefusedError, Session, deadline, welcome
from jaxengine.device.tiers.peers.shelf import Shelf
from jaxengine.errors import ConfigError

logger = logging.getLogger("jaxengine")

MOST_CONNECTIONS = 64
BEGINNING_S = 5.0
"""How long a connection may take until both sides have proved who they are."""
QUESTION_S = 5.0
"""How long a question may take to arrive once it has begun."""
IDLE_S = 600.0
"""How long a connection may ask nothing."""
ANSWER_S = 30.0
"""How long an answer may take to be read."""
BIND_S = 10.0
"""How long an address may be taken at the start: an engine that died a moment ago may still have it."""


@dataclass(slots=True)
class Served:
    """Since the server was made: blocks and bytes that went out, in memory or over the network, and refused connections."""

    blocks: int = 0
    bytes: int = 0
    refused: int = 0


class PageServer:
    """Listens from when it is made until it is closed. A connection is a thread of its own; there are at most 64.

    Args:
        listener: from `listen`; it closes with this.
        namespace: only engines of the same one are welcome.
    """

    def __init__(self, shelf: Shelf, listener: socket.socket, *, secret: bytes, namespace: bytes) -> None:
        self.namespace = namespace
        self.served = Served()
        self._shelf = shelf
        self._secret = secret
        self._lock = threading.Lock()
        self._connections: set[socket.socket] = set()
        self._closed = False
        self._listeners = [listener]
        self.port: int = listener.getsockname()[1]
        self._local_name = b""
        if shelf.ring.descriptor is not None:
            # A name without a file, which goes with the socket; only who is told it over TCP knows it.
            self._local_name = secrets.token_hex(LOCAL_NAME_BYTES // 2).encode()
            local = socket.socket(socket.AF_UNIX)
            local.bind(b"\x00" + self._local_name)
            local.listen(MOST_CONNECTIONS)
            self._listeners.append(local)
        for listener in self._listeners:
            threading.Thread(target=self._accept, args=(listener,), name="pages: accept", daemon=True).start()

    def close(self) -> None:
        """Listen no more and end all connections. Closing twice is fine."""
        with self._lock:
            self._closed = True
            ending = [*self._listeners, *self._connections]
        for each in ending:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self, listener: socket.socket) -> None:
        while not self._closed:
            try:
                connection, _ = listener.accept()
            except OSError as error:
                if self._closed or error.errno in (errno.EBADF, errno.EINVAL):
                    return
                time.sleep(0.1)  # too many open files: others may close some
                continue
            with self._lock:
                full = self._closed or len(self._connections) >= MOST_CONNECTIONS
                if not full:
                    self._connections.add(connection)
            if full:
                connection.close()
            else:
                threading.Thread(target=self._serve, args=(connection,), name="pages: serve", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            if connection.family != socket.AF_UNIX:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            session = welcome(connection, self._secret, self.namespace, until=deadline(BEGINNING_S))
            while True:
                _await_first_byte(connection)
                content = session.receive(most=LONGEST_QUESTION, until=deadline(QUESTION_S))
                if session.namespace != self.namespace:
                    return  # it begins again, with a namespace that it may have changed too
                self._answer(session, Question.unpack(content))
        except RefusedError as error:
            self.served.refused += 1
            logger.warning("an engine that wanted pages was refused: %s", error)
        except OSError as error:
            logger.debug("a connection of another engine has ended: %s", error)
        finally:
            with self._lock:
                self._connections.discard(connection)
            connection.close()

    def _answer(self, session: Session, question: Question) -> None:
        is_local = session.socket.family == socket.AF_UNIX
        until = deadline(ANSWER_S)
        match question.ask:
            case Ask.HAS:
                there = self._shelf.wait(question.keys, question.patience_ms / 1000)
                session.send(bytes(there), until=deadline(ANSWER_S))
            case Ask.FETCH:
                self._send_block(session, question.keys[0], is_local=is_local, until=until)
            case Ask.LOCAL:
                session.send(self._local_name, until=until)
            case Ask.MEMORY:
                descriptor = self._shelf.ring.descriptor
                if is_local and descriptor is not None:
                    socket.send_fds(session.socket, [b"\x00"], [descriptor])
                session.send(b"", until=until)

    def _send_block(self, session: Session, key: bytes, *, is_local: bool, until: float) -> None:
        place = self._shelf.place(key)
        if place is not None and is_local:
            session.send(pack_found(Found.IN_MEMORY, *place), until=until)
            length = place.length
        else:
            # A copy: what lies in the ring may be overwritten while it is on its way.
            copy = None if place is None else self._shelf.ring.read(*place)
            if copy is None:
                session.send(pack_found(Found.NOTHING), until=until)
                return
            session.send(pack_found(Found.HERE, length=copy.nbytes), copy.data, until=until)
            length = copy.nbytes
        with self._lock:
            self.served.blocks += 1
            self.served.bytes += length


def _await_first_byte(connection: socket.socket) -> None:
    """Wait for a question to begin; whoever asks nothing for very long has lost the connection."""
    connection.settimeout(IDLE_S)
    connection.recv(1, socket.MSG_PEEK)


def listen(host: str, port: int) -> socket.socket:
    """A socket with this address, for a `PageServer`; port 0 takes any that is free.

    Raises:
        ConfigError: it cannot be had.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    until = deadline(BIND_S)
    while True:
        listener = socket.socket(family)
        if sys.platform != "win32":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
            listener.listen(MOST_CONNECTIONS)
            return listener
        except OSError as error:
            listener.close()
            if error.errno != errno.EADDRINUSE or time.monotonic() > until:
                raise ConfigError(
                    f"pages cannot be served at {host}:{port}: {error.strerror}. Choose another kv_ip or kv_port"
                ) from None
            time.sleep(0.2)
