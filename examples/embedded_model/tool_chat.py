"""Conversations with tools: a fitting tool is called, its result becomes a sentence, and without one the answer is plain."""

import json
import random
from collections.abc import Callable

from examples.embedded_model.chat import SYSTEMS, Message, Turn, about_turn, fact_turn, greeting_turn, messages
from examples.embedded_model.sums import sum_turn
from examples.embedded_model.templates import a
from examples.embedded_model.tools import CITY, SHAPES, Shape, Tool, draw_toolbox, draw_value

Conversation = tuple[list[Message], list[dict[str, object]]]


def _ask(shape: Shape, values: list[str], rng: random.Random) -> str:
    text = rng.choice(shape.asks)
    for number, value in enumerate(values):
        text = text.replace(f"a {{{number}}}", a(value)).replace(f"{{{number}}}", value)
    return text


def casual_ask(shape: Shape, values: list[str], rng: random.Random) -> str:
    """The request, its last mark left out now and then where no value stands before it."""
    text = _ask(shape, values, rng)
    return text[:-1] if rng.random() < 0.15 and text[-1] in "?." else text


def _result(shape: Shape, values: list[str], rng: random.Random) -> tuple[str, str]:
    """What the tool answers, and the sentence made of it."""
    result, answer = rng.choice(shape.results), shape.answer
    fresh = {name: draw_value(name, rng) for name in ("n", "sky", "clock")}
    if shape.names[0] == "add":
        fresh["n"] = str(sum(int(value) for value in values))
    for name, value in fresh.items():
        result, answer = result.replace(f"{{{name}}}", value), answer.replace(f"{{{name}}}", value)
    for number, value in enumerate(values):
        answer = answer.replace(f"A {{{number}}}", a(value).capitalize()).replace(f"{{{number}}}", value)
    return result, answer


def tool_turn(tool: Tool, rng: random.Random) -> list[Message]:
    """A request, the call, the tool's result, and the answer."""
    values = [draw_value(parameter.values, rng) for parameter in tool.shape.parameters]
    call = tool.call(values)
    result, answer = _result(tool.shape, values, rng)
    return [
        {"role": "user", "content": casual_ask(tool.shape, values, rng)},
        {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": call}]},
        {"role": "tool", "content": result},
        {"role": "assistant", "content": answer},
    ]


def double_turn(tool: Tool, rng: random.Random) -> list[Message]:
    """One request that needs two calls of the same tool."""
    first, second = draw_value("city", rng), draw_value("city", rng)
    what = tool.shape.asks[0].split(" in {0}")[0]
    pairs = [_result(tool.shape, [value], rng) for value in (first, second)]
    calls = [{"type": "function", "function": tool.call([value])} for value in (first, second)]
    return [
        {
            "role": "user",
            "content": rng.choice((f"{what} in {first} and {second}?", f"{what} in {first} and in {second}?")),
        },
        {"role": "assistant", "content": "", "tool_calls": calls},
        *[Message(role="tool", content=result) for result, _ in pairs],
        {"role": "assistant", "content": " ".join(answer for _, answer in pairs)},
    ]


def missing_turn(shape: Shape, rng: random.Random) -> Turn:
    """A request for which there is no tool."""
    values = [draw_value(parameter.values, rng) for parameter in shape.parameters]
    return _ask(shape, values, rng), f"I cannot {shape.decline}, because I have no tool for it."


def _plain_turns(tools: list[Tool]) -> list[Callable[[random.Random], Turn]]:
    """What needs no tool; sums only when no tool calculates."""
    turns: list[Callable[[random.Random], Turn]] = [fact_turn, greeting_turn, about_turn]
    return turns if any(tool.shape.names[0] == "add" for tool in tools) else [*turns, sum_turn]


def conversation(rng: random.Random) -> Conversation:
    """Messages and the tools that go with them, one to four."""
    tools = draw_toolbox(rng, count=rng.choice((1, 1, 2, 2, 3)))
    out: list[Message] = [{"role": "system", "content": rng.choice(SYSTEMS)}] if rng.random() < 0.3 else []
    for _ in range(rng.choice((1, 1, 2, 2, 3))):
        draw = rng.random()
        if draw < 0.70:
            tool = rng.choice(tools)
            double = tool.shape.parameters == (CITY,) and rng.random() < 0.1
            out += (double_turn if double else tool_turn)(tool, rng)
        elif draw < 0.88:
            present = {tool.shape.names[0] for tool in tools} | {"add"}
            missing = [shape for shape in SHAPES if shape.names[0] not in present]
            out += messages([missing_turn(rng.choice(missing), rng)])
        else:
            out += messages([rng.choice(_plain_turns(tools))(rng)])
    return out, [tool.schema for tool in tools]


def call_text(call: dict[str, object]) -> str:
    """The call as the chat template writes it."""
    return f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>"
