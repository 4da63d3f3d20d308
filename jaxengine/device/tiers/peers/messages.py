"""What a client asks a server of pages, and how both write it: fixed layouts, and nothing that could be code."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from jaxengine.device.tiers.keys import KEY_BYTES
from jaxengine.device.tiers.peers.session import ProtocolError

MOST_KEYS = 4096
"""Keys of one question."""
MOST_PATIENCE_MS = 10_000
_ASK = struct.Struct(">BI")
_FOUND = struct.Struct(">BQI")
LONGEST_QUESTION = _ASK.size + MOST_KEYS * KEY_BYTES
LONGEST_REPLY = MOST_KEYS
LOCAL_NAME_BYTES = 32


class Ask(IntEnum):
    """What a frame of a client begins with.

    `HAS` asks which blocks are there, and is answered with a byte for each, at the latest after so many milliseconds that it may
    take until all are. `FETCH` asks for one block. `LOCAL` asks for the name of a socket on the same machine, or nothing, and
    `MEMORY`, on that socket alone, for the memory that blocks lie in: an empty frame follows the descriptor.
    """

    HAS = 1
    FETCH = 2
    LOCAL = 3
    MEMORY = 4


class Found(IntEnum):
    """What the answer to `FETCH` begins with: there is no such block, its bytes follow, or they lie at a place in the ring."""

    NOTHING = 0
    HERE = 1
    IN_MEMORY = 2


class Question(NamedTuple):
    """A client's frame."""

    ask: Ask
    patience_ms: int
    keys: tuple[bytes, ...]

    def pack(self) -> bytes:
        """As it travels."""
        return _ASK.pack(self.ask, self.patience_ms) + b"".join(self.keys)

    @classmethod
    def unpack(cls, content: memoryview) -> Question:
        """Read a frame.

        Raises:
            ProtocolError: it is none.
        """
        if len(content) < _ASK.size or (len(content) - _ASK.size) % KEY_BYTES:
            raise ProtocolError("a question of an odd length")
        ask, patience_ms = _ASK.unpack_from(content)
        keys = bytes(content[_ASK.size :])
        count = len(keys) // KEY_BYTES
        allowed = {Ask.HAS: range(1, MOST_KEYS + 1), Ask.FETCH: range(1, 2), Ask.LOCAL: (0,), Ask.MEMORY: (0,)}
        if ask not in allowed or count not in allowed[ask] or patience_ms > MOST_PATIENCE_MS:
            raise ProtocolError("a question that does not exist")
        return cls(Ask(ask), patience_ms, tuple(keys[i : i + KEY_BYTES] for i in range(0, len(keys), KEY_BYTES)))


def pack_found(found: Found, position: int = 0, length: int = 0) -> bytes:
    """The beginning of the answer to `FETCH`."""
    return _FOUND.pack(found, position, length)


def unpack_found(content: memoryview) -> tuple[Found, int, int, memoryview]:
    """What was found, its position in the ring and its length, and the bytes themselves where they follow.

    Raises:
        ProtocolError: it is no such answer.
    """
    if len(content) < _FOUND.size:
        raise ProtocolError("an answer that is too short")
    found, position, length = _FOUND.unpack_from(content)
    if found not in iter(Found):
        raise ProtocolError("an answer that does not exist")
    return Found(found), position, length, content[_FOUND.size :]


LONGEST_FOUND = _FOUND.size
"""Bytes of that answer without those of the block."""


def check_reply(reply: memoryview, keys: Sequence[bytes]) -> list[bool]:
    """Read the answer to `HAS`.

    Raises:
        ProtocolError: it is no such answer.
    """
    if len(reply) != len(keys):
        raise ProtocolError("an answer of another length than the question")
    return [byte == 1 for byte in reply]
