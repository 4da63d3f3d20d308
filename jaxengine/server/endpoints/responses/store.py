"""Responses that later ones may go on from, in memory and bounded."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, cast

import orjson

from jaxengine.errors import RequestError
from jaxengine.server.endpoints.responses.protocol import Item, ResponseObject
from jaxengine.server.http.fields import JsonObject


class ResponseNotFoundError(RequestError):
    """There is no such response, or no longer."""

    http_status = 404
    openai_type = "NotFoundError"


class ResponseStore:
    """Keeps responses and the conversations that led to them; the longest unused go first when there is no room.

    Args:
        max_bytes: of all of them, as JSON. One that is larger is not kept at all.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._kept: OrderedDict[str, tuple[bytes, bytes, bytes]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def num_bytes(self) -> int:
        """Size of everything kept."""
        return self._bytes

    def put(self, response: ResponseObject, messages: list[JsonObject], items: list[Item]) -> None:
        """Keep a response, the conversation to its end (without instructions), and the items of its own input."""
        entry = _packed(response), _packed(messages), _packed(items)
        self._kept[response["id"]] = entry
        self._bytes += _size(entry)
        while self._bytes > self._max_bytes:
            self._bytes -= _size(self._kept.popitem(last=False)[1])

    def response(self, response_id: str) -> ResponseObject:
        """A response that was kept.

        Raises:
            ResponseNotFoundError: it was not, or had to go.
        """
        return cast(ResponseObject, orjson.loads(self._find(response_id)[0]))

    def messages(self, response_id: str) -> list[JsonObject]:
        """The conversation to the end of a response that was kept.

        Raises:
            ResponseNotFoundError: it was not, or had to go.
        """
        messages: list[dict[str, Any]] = orjson.loads(self._find(response_id)[1])
        return messages

    def input_items(self, response_id: str) -> list[Item]:
        """The items that the input of a response consisted of.

        Raises:
            ResponseNotFoundError: it was not kept, or had to go.
        """
        items: list[Item] = orjson.loads(self._find(response_id)[2])
        return items

    def delete(self, response_id: str) -> None:
        """Forget a response.

        Raises:
            ResponseNotFoundError: it was not kept.
        """
        self._bytes -= _size(self._find(response_id))
        del self._kept[response_id]

    def _find(self, response_id: str) -> tuple[bytes, bytes, bytes]:
        if response_id not in self._kept:
            raise ResponseNotFoundError(
                f"Response with id '{response_id[:100]}' not found: only responses with store=true are kept, in memory, "
                "until later ones need their place."
            )
        self._kept.move_to_end(response_id)
        return self._kept[response_id]


def _packed(value: Any) -> bytes:
    # A copy: what orjson returns keeps the buffer that it was written in, ten times as large where it is short.
    return bytes(memoryview(orjson.dumps(value)))


def _size(entry: tuple[bytes, bytes, bytes]) -> int:
    return sum(map(len, entry))
