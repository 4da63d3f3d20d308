"""The tools of a conversation: which the model may call, whether it must, and how its calls are read."""

from __future__ import annotations

import dataclasses
import logging
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from jaxengine.contract.answer_form import AnswerForm, Thinking
from jaxengine.contract.structured_outputs import StructuredOutputsParams
from jaxengine.errors import RequestError, UnsupportedError
from jaxengine.front.parsers.calls import Function
from jaxengine.front.parsers.reasoning import ReasoningFormat
from jaxengine.front.parsers.tools import TOOL_FORMATS, ToolFormat, tool_parser
from jaxengine.server.conversation.conversation import Conversation
from jaxengine.server.conversation.reading import ChatReader
from jaxengine.server.http.fields import JsonObject
from jaxengine.server.service import Service
from jaxengine.text.tokenizer import Tokenizer

logger = logging.getLogger("jaxengine")

NAME = re.compile(r"[\w.:/-]{1,128}")


@dataclass(frozen=True, slots=True)
class ToolUse:
    """How a request uses tools. `choice` is `none`, `auto`, `required` or `named`; `parser` is None when nothing is parsed."""

    choice: str
    functions: tuple[Function, ...]
    parser: str | None
    several: bool

    @property
    def forced(self) -> bool:
        """Whether the answer has to be a call."""
        return self.choice in ("required", "named")

    @property
    def format(self) -> ToolFormat | None:
        """The format of the calls."""
        return None if self.parser is None else TOOL_FORMATS[self.parser]


NO_TOOLS = ToolUse("none", (), None, several=True)


def tool_use(asked: Conversation, service: Service) -> ToolUse:
    """What a conversation says of tools, checked.

    Raises:
        RequestError: malformed tools, or a choice that fits neither them nor the server's options.
    """
    choice = asked.tool_choice
    if asked.tools is None:
        if choice not in (None, "none"):
            raise RequestError("When using `tool_choice`, `tools` must be set.", param="tool_choice")
        return NO_TOOLS
    functions = _functions(asked.tools)
    kind, named = _choice(choice, functions)
    if kind == "none":
        return dataclasses.replace(NO_TOOLS, functions=functions)
    parser = service.formats.tools
    if kind == "auto" and not (service.options.api.enable_auto_tool_choice and parser):
        missing = "--enable-auto-tool-choice" if parser else "--enable-auto-tool-choice and --tool-call-parser"
        raise RequestError(f'"auto" tool choice requires {missing} to be set', param="tool_choice")
    if parser is None:
        raise RequestError.of("tool_choice", f"{kind!r} requires --tool-call-parser to be set")
    several = asked.parallel_tool_calls is not False and kind != "named"
    return ToolUse(kind, (named,) if named is not None else functions, parser, several)


def template_tools(asked: Conversation, use: ToolUse, service: Service) -> list[JsonObject] | None:
    """The tools that the chat template shows the model."""
    if use.choice == "none" and service.options.api.exclude_tools_when_tool_choice_none:
        return None
    return asked.tools


def constrained(
    structure: StructuredOutputsParams | None, use: ToolUse, reasoning: ReasoningFormat | None, *, prompt: str
) -> StructuredOutputsParams | None:
    """The form of an answer with its tool calls, behind the reasoning that the model may begin with.

    Raises:
        RequestError: calls are required and another form is as well.
    """
    form = use.format
    if use.forced:
        if structure is not None:
            raise RequestError.of("tool_choice", f"{use.choice!r} and a structured answer exclude each other; give one")
        assert form is not None
        grammar = form.grammar(use.functions, several=use.several)
        structure = AnswerForm(grammar=grammar, markers=form.markers)
    elif structure is not None and form is not None:
        if form.looks_like_json:
            raise UnsupportedError(
                f"a structured answer beside tools is not supported with --tool-call-parser {use.parser}, whose calls look "
                "like one; use tool_choice 'none' or 'required'",
                param="response_format",
            )
        calls = form.grammar(use.functions, several=use.several)
        structure = AnswerForm.of(structure, instead=calls, markers=form.markers)
    elif form is not None and any(function.strict for function in use.functions):
        structure = _strict_calls(use, form)
    if structure is None or reasoning is None:
        return structure
    opened = reasoning.opened_by(prompt)
    if opened is False:
        return structure
    opened = bool(opened) or reasoning.begins_open
    thinking = Thinking(reasoning.begin, reasoning.end, opened=opened, answer="" if use.forced else reasoning.answer)
    return AnswerForm.of(structure, thinking=thinking)


def _strict_calls(use: ToolUse, form: ToolFormat) -> AnswerForm | None:
    """Free text with calls in it, whose arguments follow the schemas of the functions that are strict."""
    if form.after_marker is None:
        _warn_not_strict(str(use.parser))
        return None
    loose = [function if function.strict else Function(function.name, {"type": "object"}) for function in use.functions]
    grammar = form.grammar(loose, several=form.after_marker == "several")
    return AnswerForm(grammar=grammar, markers=form.markers, triggered=True)


@lru_cache(maxsize=8)
def _warn_not_strict(parser: str) -> None:
    # Once: clients set it on all their tools.
    logger.warning(
        "strict functions are not enforced with tool_call_parser %s unless tool_choice forces a call", parser
    )


def chat_reader(asked: Conversation, use: ToolUse, reasoning: ReasoningFormat | None, *, prompt: str) -> ChatReader:
    """A reader for one of the answers."""
    return ChatReader(
        reasoning_parser=None if reasoning is None else reasoning.parser(reasoning.opened_by(prompt)),
        tools=None if use.parser is None else tool_parser(use.parser, use.functions),
        several=use.several,
        ends_as_call=use.choice != "named",
        forced=use.forced,
        tell_reasoning=asked.include_reasoning is not False,
        short_ids=use.format is not None and use.format.short_ids,
    )


def reads_special_tokens(use: ToolUse, reasoning: ReasoningFormat | None, tokenizer: Tokenizer | None) -> bool:
    """Whether the text of special tokens must be kept: one of them is a marker of a format in use."""
    if tokenizer is None:
        return False
    markers = (*(use.format.markers if use.format else ()), *(reasoning.markers if reasoning else ()))
    return any(tokenizer.backend.token_to_id(marker) in tokenizer.special_ids for marker in markers)


def _functions(tools: list[JsonObject]) -> tuple[Function, ...]:
    if not tools:
        raise RequestError.of("tools", "must not be empty; leave it out to use none")
    functions = [_function(index, tool) for index, tool in enumerate(tools)]
    names = [function.name for function in functions]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise RequestError.of("tools", f"has more than one function {twice!r}")
    return tuple(functions)


def _function(index: int, tool: JsonObject) -> Function:
    described: Any = tool.get("function")
    if tool.get("type", "function") != "function" or not isinstance(described, dict):
        raise RequestError(f"tools[{index}] must be {{'type': 'function', 'function': {{...}}}}", param="tools")
    name, parameters = described.get("name"), described.get("parameters")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise RequestError(
            f"tools[{index}].function.name must be 1 to 128 letters, digits and any of _ . : / -, got {str(name)[:100]!r}",
            param="tools",
        )
    if parameters is not None and not isinstance(parameters, dict):
        raise RequestError(f"tools[{index}].function.parameters must be a JSON schema, an object", param="tools")
    strict = described.get("strict") is True
    return Function(name, parameters, strict) if parameters else Function(name, strict=strict)


def _choice(choice: str | JsonObject | None, functions: tuple[Function, ...]) -> tuple[str, Function | None]:
    if choice is None:
        return "auto", None
    if isinstance(choice, str):
        if choice not in ("none", "auto", "required"):
            raise RequestError.of("tool_choice", f"must be none, auto, required or a function, got {choice[:100]!r}")
        return choice, None
    described = choice.get("function")
    name = described.get("name") if isinstance(described, dict) else None
    if choice.get("type", "function") != "function" or not isinstance(name, str):
        raise RequestError.of(
            "tool_choice",
            "must be none, auto, required or {'type': 'function', 'function': {'name': ...}} (to allow some tools alone, send "
            f"no others), got {str(choice)[:100]}",
        )
    for function in functions:
        if function.name == name:
            return "named", function
    raise RequestError.of("tool_choice", f"names {name[:100]!r}, which is not in tools")
