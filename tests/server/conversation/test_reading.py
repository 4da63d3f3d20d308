"""A message is read in the order in which it was written, however much of it comes at once."""

from __future__ import annotations

import pytest

from jaxengine.front.parsers.calls import Function
from jaxengine.front.parsers.reasoning import REASONING_FORMATS
from jaxengine.front.parsers.tools import tool_parser
from jaxengine.server.conversation.message import MessageDelta
from jaxengine.server.conversation.reading import ChatReader

CALL = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
WRITTEN = f"<think>Hm.</think>First{CALL}{CALL} then{CALL} last"


def order(deltas: list[MessageDelta]) -> list[str]:
    """What deltas tell, in order, with neighbours of a kind joined."""
    found: list[tuple[str, str]] = []
    for delta in deltas:
        for kind, text in (
            ("thought", delta.reasoning),
            ("text", delta.content),
            *(("call", call.name) for call in delta.tool_calls),
        ):
            if kind != "call" and found and found[-1][0] == kind:
                found[-1] = kind, found[-1][1] + text
            elif text:
                found.append((kind, text))
    return [text for _, text in found]


@pytest.mark.parametrize("length", [1, 7, 40, 1000])
def test_content_and_calls_come_in_their_order(length: int) -> None:
    reader = ChatReader(
        reasoning_parser=REASONING_FORMATS["qwen3"].parser(None),
        tools=tool_parser("hermes", (Function("now"),)),
        several=True,
        ends_as_call=True,
        forced=False,
        tell_reasoning=True,
        short_ids=False,
    )
    deltas = [
        delta for begin in range(0, len(WRITTEN), length) for delta in reader.feed(WRITTEN[begin : begin + length])
    ]
    last, reason = reader.finish("stop")
    assert order(deltas + last) == ["Hm.", "First", "now", "now", " then", "now", " last"]
    assert reason == "tool_calls"


@pytest.mark.parametrize("reason", ["length", "abort"])
def test_a_forced_call_that_is_cut_is_told_as_far_as_it_came(reason: str) -> None:
    reader = ChatReader(
        reasoning_parser=None,
        tools=tool_parser("hermes", (Function("now"),)),
        several=True,
        ends_as_call=True,
        forced=True,
        tell_reasoning=True,
        short_ids=False,
    )
    deltas = reader.feed(CALL[:-20])
    last, ended = reader.finish(reason)
    assert [call.name for delta in deltas + last for call in delta.tool_calls] == ["now"]
    assert "".join(delta.content for delta in deltas + last) == ""
    assert ended == reason
