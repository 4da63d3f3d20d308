"""Large answers as JSON, in pieces: written as their items come, and never for so long that others wait for the event loop.

array = JsonArray()                       for each list that may be long
array.extend(items)                       as they come; the objects can be let go of
json_texts({"id": ..., "top": array})     bytes that make up one text; nothing large is copied
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar, cast

import orjson

T = TypeVar("T")

SLICE_S = 0.002
"""Seconds of work after which whatever else the event loop has to do gets its turn."""

PART = 64
"""Items that are written at once: some 0.1 ms of work, or 1 ms where each holds twenty log probabilities."""

LEAST_PIECE = 1 << 16
"""Bytes of a piece, but for the last: small ones are put together."""


class Slices:
    """The slices of one coroutine's work: `turn` returns at once within one, else after the event loop's other work."""

    def __init__(self) -> None:
        self._until = time.monotonic() + SLICE_S

    async def turn(self) -> None:
        """Give others their turn if it is theirs."""
        if time.monotonic() >= self._until:
            await asyncio.sleep(0)
            self._until = time.monotonic() + SLICE_S


class JsonArray:
    """A list kept as the JSON text of its items, which are let go of at once: to collect garbage among many takes long."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._small: list[bytes] = []

    def extend(self, items: Sequence[Any] | JsonArray) -> None:
        """Add a few items at its end, or those of another one."""
        if isinstance(items, JsonArray):
            self._join()
            self._parts += [*items._parts, *items._small]
        elif items:
            self._small.append(orjson.dumps(items)[1:-1])
            if len(self._small) == PART:
                self._join()

    def texts(self) -> Iterator[bytes]:
        """Its text, in pieces."""
        self._join()
        yield b"["
        for number, part in enumerate(self._parts):
            if number:
                yield b","
            yield part
        yield b"]"

    def as_list(self) -> list[Any]:
        """The same object to whoever puts it where an answer has a list."""
        return cast("list[Any]", self)

    def _join(self) -> None:
        if self._small:
            self._parts.append(b",".join(self._small))
            self._small = []


def json_texts(data: Any) -> list[bytes]:
    """The JSON text of what is made of dictionaries, lists, texts, numbers and `JsonArray`s, in pieces of any length."""
    arrays: list[JsonArray] = []
    mark = secrets.token_hex(16)

    def place(value: Any) -> str:
        if not isinstance(value, JsonArray):
            raise TypeError(f"a {type(value).__name__} is no JSON")
        arrays.append(value)
        return mark

    first, *others = orjson.dumps(data, default=place).split(b'"%b"' % mark.encode())
    texts = [first]
    for array, text in zip(arrays, others, strict=True):
        texts += [*array.texts(), text]
    return texts


def joined(texts: Iterable[bytes]) -> Iterator[bytes]:
    """The same text in pieces that are not small, but for the last."""
    together: list[bytes] = []
    length = 0
    for text in texts:
        together.append(text)
        length += len(text)
        if length >= LEAST_PIECE:
            yield b"".join(together)
            together, length = [], 0
    if together:
        yield b"".join(together)


def parts(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """A list part by part: all of it where it is short."""
    if len(items) <= PART:
        yield items
    else:
        for begin in range(0, len(items), PART):
            yield items[begin : begin + PART]
