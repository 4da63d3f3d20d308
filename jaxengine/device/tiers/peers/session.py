"""A connection between two engines that know the same secret: how it begins, and the frames that it carries.

    server                                    client
    magic, version, nonce            ----->
                                     <-----   magic, version, nonce, namespace, proof
    status, namespace, proof         ----->

A proof is an HMAC under the secret over all that both have said so far, with the name of the side that makes it, so that neither
can be made of the other. Everything before the proofs has a fixed length. Whoever has no secret learns a version and random
bytes.

A frame is `length (4), MAC (16), content`. The MAC is keyed by a hash of the secret and both nonces, by direction, and covers
the frame's number: no frame can be changed, left out, repeated or reordered. Contents are not encrypted.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import socket
import struct
import time
from enum import IntEnum
from typing import TypeAlias

import numpy as np

Bytes: TypeAlias = bytes | bytearray | memoryview

MAGIC = b"jaxengKV"
VERSION = 1
NONCE_BYTES = 32
NAMESPACE_BYTES = 32
PROOF_BYTES = 32
MAC_BYTES = 16

_GREETING = struct.Struct(f">{len(MAGIC)}sH{NONCE_BYTES}s")
_ANSWER = struct.Struct(f">{len(MAGIC)}sH{NONCE_BYTES}s{NAMESPACE_BYTES}s{PROOF_BYTES}s")
_VERDICT = struct.Struct(f">B{NAMESPACE_BYTES}s{PROOF_BYTES}s")
_LENGTH = struct.Struct(">I")
_NUMBER = struct.Struct(">QI")


class Status(IntEnum):
    """How a server ends the beginning."""

    WELCOME = 0
    OTHER_SECRET = 1
    OTHER_VERSION = 2
    OTHER_NAMESPACE = 3


class ProtocolError(ConnectionError):
    """The other side says what is not allowed, or not in time: the connection is of no more use."""


class RefusedError(ProtocolError):
    """The two do not belong together; the message says why, and trying again is of no use until one of them changes."""


def deadline(seconds: float) -> float:
    """The time, on the clock that sessions use, that is so far away."""
    return time.monotonic() + seconds


class Session:
    """One end of a connection after its beginning. One thread uses it at a time; any error is its end.

    Attributes:
        socket: to be closed by whoever has the session.
        namespace: the other side's.
    """

    def __init__(self, connection: socket.socket, *, namespace: bytes, key: bytes, is_server: bool) -> None:
        self.socket = connection
        self.namespace = namespace
        names = (b"from server", b"from client")
        self._out, self._in = (
            hashlib.blake2b(name, key=key, digest_size=MAC_BYTES) for name in (names if is_server else names[::-1])
        )
        self._num_sent = 0
        self._num_received = 0

    def send(self, *content: Bytes, until: float) -> None:
        """Send a frame made of these parts.

        Raises:
            OSError: the other end is gone, or does not read in time.
        """
        views = [memoryview(part).cast("B") for part in content]
        length = sum(view.nbytes for view in views)
        mac = self._out.copy()
        mac.update(_NUMBER.pack(self._num_sent, length))
        for view in views:
            mac.update(view)
        self._num_sent += 1
        send_all(self.socket, [_LENGTH.pack(length) + mac.digest(), *views], until)

    def receive(self, *, most: int, until: float) -> memoryview:
        """The content of the next frame, of at most so many bytes.

        Raises:
            OSError: the other end is gone, does not send in time, or sends something else.
        """
        head = receive_exactly(self.socket, _LENGTH.size + MAC_BYTES, until)
        [length] = _LENGTH.unpack_from(head)
        if length > most:
            raise ProtocolError(f"a message of {length} bytes, where at most {most} are allowed")
        content = receive_exactly(self.socket, length, until)
        mac = self._in.copy()
        mac.update(_NUMBER.pack(self._num_received, length))
        mac.update(content)
        if not hmac.compare_digest(mac.digest(), head[_LENGTH.size :]):
            raise ProtocolError("a message that does not come from the other engine")
        self._num_received += 1
        return content


def welcome(connection: socket.socket, secret: bytes, namespace: bytes, *, until: float) -> Session:
    """Begin a session with whoever has connected.

    Raises:
        RefusedError: another secret, version or namespace; the other side has been told.
        OSError: it is gone, too slow, or speaks something else.
    """
    greeting = _GREETING.pack(MAGIC, VERSION, secrets.token_bytes(NONCE_BYTES))
    send_all(connection, [greeting], until)
    answer = bytes(receive_exactly(connection, _ANSWER.size, until))
    magic, version, _, theirs, proof = _ANSWER.unpack(answer)
    if magic != MAGIC:
        raise ProtocolError("the other side is no engine")
    said = greeting + answer[:-PROOF_BYTES]
    if version != VERSION:
        status = Status.OTHER_VERSION
    elif not hmac.compare_digest(proof, _proof(secret, b"client", said)):
        status = Status.OTHER_SECRET
    else:
        status = Status.WELCOME if theirs == namespace else Status.OTHER_NAMESPACE
    trusted = status in (Status.WELCOME, Status.OTHER_NAMESPACE)
    ours = namespace if trusted else bytes(NAMESPACE_BYTES)
    mine = _proof(secret, b"server", said + bytes([status]) + ours) if trusted else bytes(PROOF_BYTES)
    send_all(connection, [_VERDICT.pack(status, ours, mine)], until)
    if status is not Status.WELCOME:
        raise RefusedError(_reason(status))
    return Session(connection, namespace=theirs, key=_session_key(secret, said), is_server=True)


def introduce(connection: socket.socket, secret: bytes, namespace: bytes, *, until: float) -> Session:
    """Begin a session with a server.

    Raises:
        RefusedError: another secret, version or namespace.
        OSError: it is gone, too slow, or speaks something else.
    """
    greeting = bytes(receive_exactly(connection, _GREETING.size, until))
    magic, version, _ = _GREETING.unpack(greeting)
    if magic != MAGIC:
        raise ProtocolError("the other side is no engine")
    if version != VERSION:
        raise RefusedError(_reason(Status.OTHER_VERSION))
    hello = _ANSWER.pack(MAGIC, VERSION, secrets.token_bytes(NONCE_BYTES), namespace, b"")[:-PROOF_BYTES]
    said = greeting + hello
    send_all(connection, [hello, _proof(secret, b"client", said)], until)
    status, theirs, proof = _VERDICT.unpack(bytes(receive_exactly(connection, _VERDICT.size, until)))
    if status in (Status.OTHER_SECRET, Status.OTHER_VERSION):
        raise RefusedError(_reason(Status(status)))
    if not hmac.compare_digest(proof, _proof(secret, b"server", said + bytes([status]) + theirs)):
        raise RefusedError("the server does not know the secret")
    if status != Status.WELCOME or theirs != namespace:
        raise RefusedError(_reason(Status.OTHER_NAMESPACE))
    return Session(connection, namespace=theirs, key=_session_key(secret, said), is_server=False)


def receive_exactly(connection: socket.socket, length: int, until: float) -> memoryview:
    """So many bytes, all of them in time.

    Raises:
        OSError: they do not come.
    """
    # NumPy's memory is not zeroed first, and it is only made once the length is known to be allowed.
    buffer = np.empty(length, np.uint8).data
    done = 0
    while done < length:
        connection.settimeout(_left(until))
        count = connection.recv_into(buffer[done:])
        if count == 0:
            raise ProtocolError("the other side has closed the connection")
        done += count
    return buffer


def send_all(connection: socket.socket, parts: list[bytes | memoryview], until: float) -> None:
    """Send all of it in time.

    Raises:
        OSError: the other end is gone, or does not read.
    """
    waiting = [memoryview(part).cast("B") for part in parts if len(part)]
    while waiting:
        connection.settimeout(_left(until))
        sent = connection.sendmsg(waiting)
        while waiting and sent >= waiting[0].nbytes:
            sent -= waiting.pop(0).nbytes
        if sent:
            waiting[0] = waiting[0][sent:]


def _left(until: float) -> float:
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError("the other side is too slow")
    return left


def _proof(secret: bytes, side: bytes, said: bytes) -> bytes:
    return hmac.digest(secret, side + b"\x00" + said, "sha256")


def _session_key(secret: bytes, said: bytes) -> bytes:
    return hmac.digest(secret, b"session\x00" + said, "sha256")


def _reason(status: Status) -> str:
    return {
        Status.OTHER_SECRET: "the two have different secrets (secret_file, secret_env)",
        Status.OTHER_VERSION: f"the other speaks another version than {VERSION}: run the same release on both",
        Status.OTHER_NAMESPACE: "the two do not compute the same pages: model, weights, dtype, page size, version and "
        "kind of device must be equal",
    }[status]
