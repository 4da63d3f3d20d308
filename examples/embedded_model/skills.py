"""What the model is examined in: for each skill, questions with the one right way to begin the answer.

Sums, facts, and most names and cities are the ones of the corpus in fresh conversations; invented names, tools and texts are
drawn anew, so that nearly all of them were never seen.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from examples.embedded_model import chat, tool_chat
from examples.embedded_model.corpus import render
from examples.embedded_model.invented import invented_name
from examples.embedded_model.sums import sum_turn
from examples.embedded_model.tools import SHAPES, Tool, draw_toolbox


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt, and the text that a right answer begins with."""

    prompt: str
    answer: str


def _turn(turn: chat.Turn, *, ends: bool = True) -> Question:
    prompt = render([{"role": "user", "content": turn[0]}], prompt=True)
    return Question(prompt, turn[1] + ("<|im_end|>" if ends else ""))


def _sum(operation: str, rng: random.Random) -> Question:
    while True:
        turn = sum_turn(rng)
        if f" {operation} " in turn[1] and turn[1].split()[0].isdigit():
            return _turn(turn)


def _greeting(rng: random.Random) -> Question:
    asked, answer = chat.greeting_turn(rng)
    return _turn((asked, answer[: answer.index("!") + 1]), ends=False)


def _invented_greeting(rng: random.Random) -> Question:
    name = invented_name(rng)
    return _turn((f"Hi, I am {name}.", f"Hello, {name}!"), ends=False)


def _recall(rng: random.Random) -> Question:
    turns = chat.name_recall(rng)
    prompt = render(chat.messages(turns)[:-1], prompt=True)
    return Question(prompt, turns[-1][1] + "<|im_end|>")


def _call(tools: list[Tool], rng: random.Random, *, until: int) -> Question:
    """A question with tools: `until` 1 asks for the call, 3 for the sentence made of the result."""
    messages = tool_chat.tool_turn(rng.choice(tools), rng)
    prompt = render(messages[:until], [tool.schema for tool in tools], prompt=True)
    full = render(messages[: until + 1], [tool.schema for tool in tools])
    return Question(prompt, full[len(prompt) :].rstrip("\n"))


def _tool_call(rng: random.Random) -> Question:
    return _call(draw_toolbox(rng, count=rng.randint(1, 3)), rng, until=1)


def _tool_sentence(rng: random.Random) -> Question:
    return _call(draw_toolbox(rng, count=rng.randint(1, 2)), rng, until=3)


def _missing_tool(rng: random.Random) -> Question:
    tools = draw_toolbox(rng, count=rng.randint(1, 2))
    present = {tool.shape.names[0] for tool in tools} | {"add"}
    shape = rng.choice([shape for shape in SHAPES if shape.names[0] not in present])
    asked, answer = tool_chat.missing_turn(shape, rng)
    prompt = render([{"role": "user", "content": asked}], [tool.schema for tool in tools], prompt=True)
    return Question(prompt, answer + "<|im_end|>")


SKILLS: dict[str, Callable[[random.Random], Question]] = {
    "addition up to 10 + 10": lambda rng: _sum("+", rng),
    "subtraction up to 20": lambda rng: _sum("-", rng),
    "facts": lambda rng: _turn(chat.fact_turn(rng)),
    "greeting by name": _greeting,
    "greeting by an invented name": _invented_greeting,
    "recalling the name": _recall,
    "repeating a sentence": lambda rng: _turn(chat.repeat_turn(rng)),
    "declining what it does not know": lambda rng: _turn(chat.unknown_turn(rng)),
    "tool call, exact name and arguments": _tool_call,
    "sentence from a tool result": _tool_sentence,
    "declining without a fitting tool": _missing_tool,
}


def questions(skill: str, *, seed: int, count: int) -> Iterator[Question]:
    """Questions of one skill."""
    rng = random.Random(f"{skill}/{seed}")
    return (SKILLS[skill](rng) for _ in range(count))
