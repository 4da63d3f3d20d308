"""The blocks of a message as they come: each begins, grows, and ends before the next."""

from __future__ import annotations

import json
from typing import Any

from jaxengine.server.conversation.message import ToolCall
from jaxengine.server.http.fields import JsonObject

Event = dict[str, Any]
"""One event of a stream; `type` names it."""


class BlockWriter:
    """Makes events of what a message gains.

    Attributes:
        blocks: those that have begun, as a whole answer has them.
    """

    def __init__(self) -> None:
        self.blocks: list[JsonObject] = []
        self._open = False
        self._arguments = ""

    def thinking(self, text: str) -> list[Event]:
        """More of the model's reasoning."""
        events = self._within({"type": "thinking", "thinking": "", "signature": ""})
        self.blocks[-1]["thinking"] += text
        return [*events, self._delta({"type": "thinking_delta", "thinking": text})]

    def text(self, text: str) -> list[Event]:
        """More of the answer's text."""
        events = self._within({"type": "text", "text": ""})
        self.blocks[-1]["text"] += text
        return [*events, self._delta({"type": "text_delta", "text": text})]

    def call(self, call: ToolCall) -> list[Event]:
        """A call: its name, then its arguments."""
        events = self._begin({"type": "tool_use", "id": call.id, "name": call.name, "input": {}})
        self._arguments = call.arguments
        if call.arguments:
            events.append(self._delta({"type": "input_json_delta", "partial_json": call.arguments}))
        return events

    def close(self) -> list[Event]:
        """End the block that is open. The arguments of a call that was cut are told in pieces only."""
        if not self._open:
            return []
        self._open = False
        block = self.blocks[-1]
        if block["type"] == "tool_use":
            try:
                block["input"] = json.loads(self._arguments or "{}")
            except ValueError:
                block["input"] = {}
        return [{"type": "content_block_stop", "index": len(self.blocks) - 1}]

    def _within(self, block: JsonObject) -> list[Event]:
        """Be in a block of this type, in a new one unless the open one is."""
        if self._open and self.blocks[-1]["type"] == block["type"]:
            return []
        return self._begin(block)

    def _begin(self, block: JsonObject) -> list[Event]:
        events = self.close()
        self.blocks.append(dict(block))
        self._open = True
        return [*events, {"type": "content_block_start", "index": len(self.blocks) - 1, "content_block": block}]

    def _delta(self, delta: JsonObject) -> Event:
        return {"type": "content_block_delta", "index": len(self.blocks) - 1, "delta": delta}
