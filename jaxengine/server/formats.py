"""How the model's tool calls and its reasoning are read: as the options say, or as the checkpoint certainly writes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jaxengine.errors import ConfigError, RequestError
from jaxengine.front.parsers.signs import REASONING_SIGNS, TOOL_SIGNS, Sign, certain_format
from jaxengine.server.options import AUTO, NO_PARSER, ApiConfig
from jaxengine.text.chat import choose_template
from jaxengine.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Formats:
    """The names of the two formats, None where texts are left as they are, and lines for the log that say why."""

    tools: str | None
    reasoning: str | None
    report: tuple[str, ...] = ()

    @classmethod
    def choose(cls, api: ApiConfig, tokenizer: Tokenizer | None) -> Formats:
        """What is asked for; with `auto` what the chat template and the model's type tell for certain.

        Raises:
            ConfigError: the model may decide to call tools, and nothing says in which format.
        """
        tools, calls = _choose("tool calls", "tool_call_parser", api.tool_call_parser, TOOL_SIGNS, tokenizer)
        reasoning, thoughts = _choose("reasoning", "reasoning_parser", api.reasoning_parser, REASONING_SIGNS, tokenizer)
        if api.enable_auto_tool_choice and tools is None:
            raise ConfigError(
                "enable_auto_tool_choice: the checkpoint does not tell for certain how this model writes tool calls; name the "
                "format with tool_call_parser"
            )
        return cls(tools, reasoning, (calls, thoughts))


def _choose(
    what: str, option: str, asked: str, signs: Sequence[Sign], tokenizer: Tokenizer | None
) -> tuple[str | None, str]:
    """The format and a line about it."""
    flag = f"--{option.replace('_', '-')}"
    if asked == NO_PARSER:
        return None, f"{what}: left in the text, as asked"
    if asked != AUTO:
        return asked, f"{what}: {asked}, as asked"
    found = None
    if tokenizer is not None:
        template = _template(tokenizer, with_tools=signs is TOOL_SIGNS)
        found = certain_format(signs, template, tokenizer.settings.model_type)
    if found is None:
        return None, f"{what}: left in the text; the chat template does not tell a format for certain ({flag})"
    return found, f"{what}: {found}, by the chat template ({flag} {NO_PARSER} leaves the text as it is)"


def _template(tokenizer: Tokenizer, *, with_tools: bool) -> str:
    """The chat template that requests are rendered with; empty when there is none."""
    try:
        return choose_template(tokenizer.settings.chat_templates, requested=None, with_tools=with_tools)
    except RequestError:
        return ""
