"""What a model says becomes the items of a response, and the events that tell of them one by one.

An item opens with `response.output_item.added`, grows with deltas and closes with `response.output_item.done`. At most one is
open, so the order of events is that of the items. A response that is not streamed is built by the same code.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

from jaxengine.server.conversation.message import ToolCall
from jaxengine.server.endpoints.responses.protocol import Item

Event = dict[str, Any]


class ItemWriter:
    """Takes what a message gains. `items` are the closed ones; every method returns the events that follow."""

    def __init__(self) -> None:
        self.items: list[Item] = []
        self._open: _Message | _Call | None = None

    def reasoning(self, text: str) -> list[Event]:
        """The model thinks."""
        return [*self._switch("reasoning"), self._opened().delta(text)]

    def content(self, text: str, logprobs: list[Any]) -> list[Event]:
        """The model answers; `logprobs` are those of the text's tokens."""
        return [*self._switch("output_text"), self._opened().delta(text, logprobs)]

    def without_text(self, logprobs: list[Any]) -> list[Event]:
        """The model answered with tokens that have no text, such as that of its end: they belong to the answer, if it is open."""
        is_answer = isinstance(self._open, _Message) and self._open.kind == "output_text"
        return [self._opened().delta("", logprobs)] if is_answer else []

    def call(self, call: ToolCall) -> list[Event]:
        """The model calls a function."""
        events = [*self.close(), *self._start(_Call(len(self.items), call.id, call.name))]
        return [*events, self._opened().delta(call.arguments)] if call.arguments else events

    def close(self, *, complete: bool = True) -> list[Event]:
        """End the open item, if there is one."""
        if self._open is None:
            return []
        last, self._open = self._open, None
        item = last.item("completed" if complete else "incomplete")
        self.items.append(item)
        return [
            *last.closing(),
            {"type": "response.output_item.done", "output_index": last.index, "item": item},
        ]

    def _switch(self, kind: str) -> list[Event]:
        if isinstance(self._open, _Message) and self._open.kind == kind:
            return []
        return [*self.close(), *self._start(_Message(len(self.items), kind=kind))]

    def _start(self, item: _Message | _Call) -> Iterator[Event]:
        self._open = item
        yield {"type": "response.output_item.added", "output_index": item.index, "item": item.item("in_progress")}
        yield from item.opening()

    def _opened(self) -> Any:
        assert self._open is not None, "an item is opened before it grows"
        return self._open


class _Message:
    """A message or reasoning with one part."""

    def __init__(self, index: int, *, kind: str) -> None:
        self.index = index
        self.kind = kind
        self._is_answer = kind == "output_text"
        self._id = _make_id("msg" if self._is_answer else "rs")
        self._name = "response.output_text" if self._is_answer else "response.reasoning_text"
        self._text: list[str] = []
        self._logprobs: list[Any] = []

    def place(self) -> Event:
        return {"output_index": self.index, "item_id": self._id}

    def opening(self) -> Iterator[Event]:
        yield {"type": "response.content_part.added", **self.place(), "content_index": 0, "part": self._part("", [])}

    def delta(self, text: str, logprobs: list[Any] | None = None) -> Event:
        self._text.append(text)
        event = {"type": f"{self._name}.delta", **self.place(), "content_index": 0, "delta": text}
        if self._is_answer:
            self._logprobs += logprobs or []
            event["logprobs"] = logprobs or []
        return event

    def closing(self) -> Iterator[Event]:
        done = {"type": f"{self._name}.done", **self.place(), "content_index": 0, "text": "".join(self._text)}
        yield {**done, "logprobs": self._logprobs} if self._is_answer else done
        yield {"type": "response.content_part.done", **self.place(), "content_index": 0, "part": self._whole()}

    def item(self, status: str) -> Item:
        content = [] if status == "in_progress" else [self._whole()]
        if self._is_answer:
            return {"type": "message", "id": self._id, "status": status, "role": "assistant", "content": content}
        return {"type": "reasoning", "id": self._id, "status": status, "summary": [], "content": content}

    def _whole(self) -> Item:
        return self._part("".join(self._text), self._logprobs)

    def _part(self, text: str, logprobs: list[Any]) -> Item:
        if self._is_answer:
            return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(logprobs)}
        return {"type": "reasoning_text", "text": text}


class _Call:
    """A function call."""

    def __init__(self, index: int, call_id: str, name: str) -> None:
        self.index = index
        self._id = _make_id("fc")
        self._call_id = call_id
        self._name = name
        self._arguments: list[str] = []

    def place(self) -> Event:
        return {"output_index": self.index, "item_id": self._id}

    def opening(self) -> Iterator[Event]:
        yield from ()

    def delta(self, text: str) -> Event:
        self._arguments.append(text)
        return {"type": "response.function_call_arguments.delta", **self.place(), "delta": text}

    def closing(self) -> Iterator[Event]:
        yield {
            "type": "response.function_call_arguments.done",
            **self.place(),
            "name": self._name,
            "arguments": "".join(self._arguments),
        }

    def item(self, status: str) -> Item:
        return {
            "type": "function_call",
            "id": self._id,
            "call_id": self._call_id,
            "name": self._name,
            "arguments": "".join(self._arguments),
            "status": status,
        }


def _make_id(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex}"
