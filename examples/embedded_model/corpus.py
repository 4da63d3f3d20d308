"""The corpus: an endless stream of documents, the same for the same seed."""

import json
import random
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import jinja2

from examples.embedded_model import chat, tool_chat
from examples.embedded_model.stories import story

TEMPLATE = Path(__file__).parent / "chat_template.jinja"
STORY_SHARE, TOOL_SHARE = 0.24, 0.30  # of documents; the rest are plain conversations, which are shorter


@cache
def _template() -> jinja2.Template:
    """The chat template, compiled as transformers does."""
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=False)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8"))


def render(messages: list[chat.Message], tools: list[dict[str, object]] | None = None, *, prompt: bool = False) -> str:
    """The conversation as text; with `prompt`, ready for the assistant to go on."""
    return _template().render(messages=messages, tools=tools, add_generation_prompt=prompt)


def document(rng: random.Random) -> str:
    """One story or one conversation."""
    draw = rng.random()
    if draw < STORY_SHARE:
        return story(rng)
    if draw < STORY_SHARE + TOOL_SHARE:
        return render(*tool_chat.conversation(rng)).rstrip("\n")
    return render(chat.conversation(rng)).rstrip("\n")


def documents(seed: int) -> Iterator[str]:
    """Documents for ever."""
    rng = random.Random(seed)
    while True:
        yield document(rng)
