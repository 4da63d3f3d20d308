"""A server whose model writes what a test tells it to."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxengine.contract.batch import Batch, StepResult
from jaxengine.contract.rows import Row
from tests.fakes import FakeRunner, logprobs_of
from tests.fronts import TOKENIZER
from tests.server.rig import Live

MESSAGES = [{"role": "user", "content": "Hi"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Rome", "Oslo"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
NOW = {"type": "function", "function": {"name": "now"}}
TOOLS = [WEATHER, NOW]


class ScriptedRunner(FakeRunner):
    """Writes `script` for one request at a time; the fake's own choice where there is none. Masks do not bind it."""

    script = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._begin: int | None = None

    def write(self, text: str) -> None:
        """What the next request gets."""
        self.script, self._begin = text, None

    def _sample(self, batch: Batch, rows: Sequence[Row]) -> StepResult:
        if not self.script:
            return super()._sample(batch, rows)
        ids = [*TOKENIZER.encode(self.script, add_special_tokens=False), TOKENIZER.eos_token_id]
        tokens, logprobs = [], []
        for row in rows:
            if row.want is None:
                continue
            position = row.start + row.num_tokens
            self._begin = position if self._begin is None else self._begin
            # a step that was launched before the end was known is one too many
            tokens.append(ids[min(position - self._begin, len(ids) - 1)])
            slot = self.slots[row.slot]
            slot.last_token, slot.length = tokens[-1], position
            asked = slot.state.spec.num_logprobs is not None
            logprobs.append(logprobs_of(position, tokens[-1]) if asked else None)
        return StepResult(tokens=np.array(tokens, np.int32), logprobs=tuple(logprobs))


def message(server: Live, **body: Any) -> tuple[dict[str, Any], str]:
    """The only answer's message and finish reason."""
    response = server.post("/v1/chat/completions", **{"messages": MESSAGES, "max_tokens": 300, **body})
    assert response.status_code == 200, response.text
    [choice] = response.json()["choices"]
    return choice["message"], choice["finish_reason"]


def streamed(server: Live, **body: Any) -> tuple[dict[str, Any], str]:
    """The same, put together from a stream's deltas."""
    *events, done = server.events("/v1/chat/completions", **{"messages": MESSAGES, "max_tokens": 300, **body})
    assert done == "[DONE]"
    whole: dict[str, Any] = {"content": "", "reasoning": "", "tool_calls": []}
    finish = ""
    for choice in (choice for event in events for choice in json.loads(event)["choices"]):
        whole["content"] += choice["delta"].get("content", "")
        whole["reasoning"] += choice["delta"].get("reasoning", "")
        whole["tool_calls"] += choice["delta"].get("tool_calls", [])
        finish = choice["finish_reason"] or finish
    return whole, finish


def calls(found: dict[str, Any]) -> list[tuple[str, Any]]:
    """Names and arguments of a message's calls."""
    functions = [call["function"] for call in found.get("tool_calls", [])]
    return [(function["name"], json.loads(function["arguments"])) for function in functions]
