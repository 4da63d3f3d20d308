"""Another engine that serves pages, as the one that fetches them sees it."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from jaxengine.device.tiers.peers.messages import (
    LOCAL_NAME_BYTES,
    LONGEST_FOUND,
    LONGEST_REPLY,
    MOST_KEYS,
    Ask,
    Found,
    Question,
    check_reply,
    unpack_found,
)
from jaxengine.device.tiers.peers.ring import HAS_SHARED_MEMORY, RingView
from jaxengine.device.tiers.peers.session import ProtocolError, deadline, introduce
from jaxengine.device.tiers.rest import Rest
from jaxengine.options.transfer import Address

logger = logging.getLogger("jaxengine")

CONNECT_S = 2.0
REPLY_S = 2.0
"""How long a question may take beyond the patience that it asks for."""
FETCH_S = 5.0
"""How long a block may take."""
MOST_IDLE = 8
"""Connections that are kept for the next question."""

T = TypeVar("T")


class Link:
    """One connection; through shared memory where the other engine is on this machine and both want it."""

    def __init__(self, address: Address, secret: bytes, namespace: bytes, *, shared_memory: bool) -> None:
        until = deadline(CONNECT_S)
        self._memory: RingView | None = None
        connection = socket.create_connection((address.host, address.port or 0), CONNECT_S)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._session = introduce(connection, secret, namespace, until=until)
            if shared_memory and HAS_SHARED_MEMORY and (name := self._local_name(until)):
                self._go_local(name, secret, namespace, until)
        except BaseException:
            connection.close()
            raise

    @property
    def is_local(self) -> bool:
        """Whether blocks come through shared memory."""
        return self._memory is not None

    def ask(self, question: Question, *, most: int, until: float) -> memoryview:
        """The answer, of at most so many bytes.

        Raises:
            OSError: it does not come, and the link is of no more use.
        """
        self._session.send(question.pack(), until=until)
        return self._session.receive(most=most, until=until)

    def fetch(self, key: bytes, *, most: int, until: float) -> NDArray[np.uint8] | None:
        """The bytes of a block; None where the other engine has it no more.

        Raises:
            OSError: as of `ask`, or it has more than `most` bytes.
        """
        reply = self.ask(Question(Ask.FETCH, 0, (key,)), most=LONGEST_FOUND + most, until=until)
        found, position, length, content = unpack_found(reply)
        if found is Found.NOTHING:
            return None
        if found is Found.HERE:
            return np.frombuffer(content, np.uint8)
        if self._memory is None or length > most:
            raise ProtocolError("a place in memory that was not asked for, or a block that is too large")
        return self._memory.read(position, length)

    def close(self) -> None:
        """End the connection."""
        self._session.socket.close()

    def _local_name(self, until: float) -> bytes:
        return bytes(self.ask(Question(Ask.LOCAL, 0, ()), most=LOCAL_NAME_BYTES, until=until))

    def _go_local(self, name: bytes, secret: bytes, namespace: bytes, until: float) -> None:
        """Go on over the socket of that name, if it is on this machine."""
        local = socket.socket(socket.AF_UNIX)
        try:
            local.settimeout(CONNECT_S)
            local.connect(b"\x00" + name)
            session = introduce(local, secret, namespace, until=until)
            session.send(Question(Ask.MEMORY, 0, ()).pack(), until=until)
            _, descriptors, _, _ = socket.recv_fds(local, 1, 1)
            session.receive(most=0, until=until)
            try:
                if len(descriptors) != 1:
                    raise ProtocolError("no memory where it was asked for")
                self._memory = RingView(descriptors[0])
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)
        except OSError:
            local.close()  # on another machine there is no such socket
            return
        self._session.socket.close()
        self._session = session


class Peer:
    """Asks one engine, over as many connections as threads ask at once. One that does not answer is left alone for a while.

    Args:
        largest: bytes of the largest block.

    Attributes:
        is_proven: it has answered, as only an engine with the secret can.
    """

    def __init__(self, address: Address, secret: bytes, namespace: bytes, *, largest: int, shared_memory: bool) -> None:
        self.address = address
        self.namespace = namespace
        self.is_proven = False
        self._secret = secret
        self._largest = largest
        self._shared_memory = shared_memory
        self._lock = threading.Lock()
        self._idle: list[Link] = []
        self._rest = Rest()
        self._said: str | None = None

    def wake(self) -> None:
        """Somebody has just heard of this engine: it is worth asking again, if it is one."""
        if self.is_proven and self._rest.resting:
            self._rest = Rest()

    def has(self, keys: Sequence[bytes], *, patience_s: float = 0.0) -> list[bool]:
        """Which blocks it has, asked until it has all or `patience_s` are over; none of an engine that does not answer."""
        found: list[bool] = []
        for begin in range(0, len(keys), MOST_KEYS):
            part = keys[begin : begin + MOST_KEYS]
            question = Question(Ask.HAS, round(patience_s * 1000), tuple(part))

            def ask(link: Link, question: Question = question) -> list[bool]:
                reply = link.ask(question, most=LONGEST_REPLY, until=deadline(patience_s + REPLY_S))
                return check_reply(reply, question.keys)

            found += self._try(ask) or [False] * len(part)
        return found

    def fetch(self, key: bytes) -> NDArray[np.uint8] | None:
        """The bytes of a block; None where it has none, or does not answer."""
        return self._try(lambda link: link.fetch(key, most=self._largest, until=deadline(FETCH_S)))

    def renew(self, namespace: bytes) -> None:
        """From now on only pages of another namespace are wanted."""
        self.namespace = namespace
        self._rest = Rest()
        self.close()

    def close(self) -> None:
        """End the connections that nobody uses."""
        with self._lock:
            idle, self._idle = self._idle, []
        for link in idle:
            link.close()

    def _try(self, use: Callable[[Link], T]) -> T | None:
        """What comes of a link. One that was kept may have been closed by a restart: then a fresh one is tried."""
        if self._rest.resting:
            return None
        while True:
            with self._lock:
                link = self._idle.pop() if self._idle else None
            kept = link is not None
            try:
                if link is None:
                    link = Link(self.address, self._secret, self.namespace, shared_memory=self._shared_memory)
                value = use(link)
            except OSError as error:
                if link is not None:
                    link.close()
                if kept and not isinstance(error, TimeoutError):
                    self.close()
                    continue
                self._fail(error)
                return None
            self._keep(link)
            return value

    def _keep(self, link: Link) -> None:
        self.is_proven = True
        self._rest.worked()
        with self._lock:
            fits = len(self._idle) < MOST_IDLE
            if fits:
                self._idle.append(link)
            said, self._said = self._said, None
        if said is not None:
            logger.info("pages of %s are there again", self.address)
        if not fits:
            link.close()

    def _fail(self, error: OSError) -> None:
        self._rest.failed()
        with self._lock:
            said, self._said = self._said, str(error) or type(error).__name__
        if said != self._said:
            logger.warning("no pages from %s, prompts are computed here: %s", self.address, self._said)
