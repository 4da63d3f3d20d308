"""Chat templates: jinja text from a model repository, rendered in a sandbox exactly as transformers renders it.

A template is code from a stranger. It sees plain data only, runs in jinja's immutable sandbox, and is compiled once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox

from jaxengine.errors import RequestError
from jaxengine.text.messages import flatten, plain, wants_parts
from jaxengine.text.placeholders import NO_PLACEHOLDERS, Placeholders
from jaxengine.text.settings import ChatTemplates

CONTINUE_HERE = "CONTINUE_FINAL_MESSAGE_TAG "
"""Marks the end of the message to continue; the trailing space tells whether the template trims messages."""


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` marks assistant text for training; when generating it changes nothing."""

    tags = {"generation"}  # noqa: RUF012 - declared so by jinja

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        return jinja2.nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class _Namespace(jinja2.utils.Namespace):
    """jinja's namespace without underscore names, which lead to interpreter internals."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *rest = args
        attributes = dict(*rest, **kwargs)
        for name in attributes:
            _refuse_private(name)
        jinja2.utils.Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_private(name)
        super().__setitem__(name, value)


class _Dict:
    """`dict(...)` in a template: a constructor, not the class with its attributes."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)


class ChatTemplate:
    """A compiled template.

    Attributes:
        wants_parts: whether messages go to it as lists of parts, and not as texts, unless told otherwise.
    """

    def __init__(self, source: str) -> None:
        environment = _environment()
        try:
            self._template = environment.from_string(source)
            self.wants_parts = wants_parts(environment.parse(source))
        except jinja2.TemplateError as error:
            raise RequestError(f"the chat template is not valid jinja: {error}", param="chat_template") from error
        self._source = source

    @staticmethod
    @lru_cache(maxsize=64)
    def compiled(source: str) -> ChatTemplate:
        """The template of this text, compiled once per process."""
        return ChatTemplate(source)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool,
        continue_final_message: bool,
        tools: Sequence[Mapping[str, Any]] | None,
        content_format: str,
        variables: Mapping[str, Any],
        placeholders: Placeholders = NO_PLACEHOLDERS,
    ) -> str:
        """The prompt text.

        Raises:
            RequestError: malformed messages, contradictory options, or the template's own refusal.
        """
        if continue_final_message and add_generation_prompt:
            raise RequestError.of(
                "continue_final_message",
                "and add_generation_prompt exclude each other: the first goes on with the last "
                "message, the second starts a new one",
            )
        chat = flatten(messages, as_parts=self._as_parts(content_format), placeholders=placeholders)
        ending = self._mark_ending(chat) if continue_final_message else None
        values = {
            "documents": None,
            **plain(variables),
            "messages": chat,
            "tools": _checked_tools(tools),
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            text = self._template.render(values)
        except jinja2.TemplateError as error:
            raise RequestError(f"the chat template refused the messages: {error}", param="messages") from error
        except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
            raise RequestError(
                f"the chat template failed on the messages ({type(error).__name__}: {error})", param="messages"
            ) from error
        return text if ending is None else _cut_at_mark(text, ending)

    def _as_parts(self, content_format: str) -> bool:
        if content_format not in ("auto", "string", "openai"):
            raise RequestError.of(
                "chat_template_content_format", f"must be auto, string or openai, got {content_format!r}"
            )
        return self.wants_parts if content_format == "auto" else content_format == "openai"

    def _mark_ending(self, chat: list[dict[str, Any]]) -> str:
        """Append the mark to the last text of the last message, and return that text."""
        content = chat[-1].get("content")
        if isinstance(content, str):
            chat[-1]["content"] = content + CONTINUE_HERE
            return content
        for part in reversed(content or ()):
            if isinstance(part.get("text"), str):
                text: str = part["text"]
                part["text"] = text + CONTINUE_HERE
                return text
        raise RequestError("continue_final_message needs a last message with text content", param="messages")


def choose_template(templates: ChatTemplates, *, requested: str | None, with_tools: bool) -> str:
    """The template a request uses: its own (by name or as text), else the model's for tools or by default.

    Raises:
        RequestError: there is none.
    """
    if isinstance(templates, Mapping):
        if requested is not None:
            return templates.get(requested, requested)
        for name in ("tool_use", "default") if with_tools else ("default",):
            if name in templates:
                return templates[name]
        raise RequestError(
            f"the model has several chat templates and no default: give chat_template=, one of {sorted(templates)}",
            param="chat_template",
        )
    source = requested if requested is not None else templates
    if source is None:
        raise RequestError(
            "the model has no chat template. Start with one (chat_template= or --chat-template: a jinja file or text), or give a "
            "prompt to continue",
            param="chat_template",
        )
    return source


@lru_cache(maxsize=1)
def _environment() -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    functions: dict[str, Callable[..., Any]] = {
        "raise_exception": _raise_exception,
        "strftime_now": _strftime_now,
        "dict": _Dict(),
        "namespace": _Namespace,
    }
    environment.globals.update(functions)
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """jinja's own filter escapes HTML, which a prompt must not."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(layout: str) -> str:
    return datetime.now().strftime(layout)


def _refuse_private(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a chat template cannot set the underscore name {name!r}")


def _checked_tools(tools: Sequence[Mapping[str, Any]] | None) -> list[Any] | None:
    if tools is None:
        return None
    for tool in tools:
        if not isinstance(tool, Mapping):
            raise RequestError(f"a tool is a JSON schema as a dict, got {type(tool).__name__}", param="tools")
    return [plain(tool) for tool in tools]


def _cut_at_mark(text: str, ending: str) -> str:
    mark = CONTINUE_HERE.strip()
    at = text.rfind(mark)
    if at < 0 or ending.strip() not in text:
        raise RequestError(
            "continue_final_message: the chat template drops or changes the last message, so it cannot be continued",
            param="continue_final_message",
        )
    kept_spacing = text.startswith(CONTINUE_HERE, at)
    return text[:at] if kept_spacing else text[:at].rstrip()
