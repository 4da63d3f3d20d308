"""From what a user asks to a grammar as llguidance reads it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from jaxengine.contract.answer_form import AnswerForm
from jaxengine.contract.structured_outputs import StructuredOutputsParams
from jaxengine.errors import RequestError

WHITESPACE = r"( |\n[ \t]{0,20})?"
"""White space in JSON where the user says nothing: none, a space, or a line break with its indentation. Models that may write
any amount of it sometimes write nothing else."""

PARAM = "structured_outputs"


Special = Callable[[str], int | None]
"""The id of a text that is one special token, which llguidance keeps apart from all text; None for other texts."""

OPTIONS = '%llguidance {"no_forcing": true}'
"""Where only one text can follow, llguidance would force its usual tokens, and take a special token's name for that token: an end
of sequence in the middle of a string. Without that, the model chooses among the tokens that spell the text."""


TOKENS = re.compile(r"(<\|?\w+\|?>)")
"""How special tokens are written that stand in a marker beside other text."""


LARK = re.compile(r"^\s*(%llguidance\b|[?!]*start\s*:(?!:))", re.MULTILINE)
"""What a grammar has that is Lark and not GBNF. Signs before a rule are about parse trees, and llguidance reads over them."""


def grammar_source(params: StructuredOutputsParams, *, special: Special) -> str:
    """The grammar as JSON for llguidance. Whether it can be compiled, llguidance says.

    Raises:
        RequestError: text that is not JSON, not a GBNF grammar, or a malformed structural tag.
    """
    try:
        form = params if isinstance(params, AnswerForm) else AnswerForm.of(params)
        markers = _marker_rules(form, special)
        answer = _SOURCES[params.kind](params)
        if params.kind == "grammar":
            answer = {"lark_grammar": f"{answer['lark_grammar']}\n{markers}"}
        grammars = [{"name": "whole", "lark_grammar": _whole(form, special)}, {"name": "answer", **answer}]
        if form.instead is not None:
            grammars.append({"name": "instead", "lark_grammar": f"{form.instead}\n{markers}"})
        return json.dumps({"grammars": grammars}, ensure_ascii=False)
    except RecursionError:
        raise _error(f"structured_outputs.{params.kind} is nested too deeply") from None


def _json_schema(params: StructuredOutputsParams) -> dict[str, Any]:
    assert isinstance(params.json, str)
    try:
        schema = json.loads(params.json)
    except ValueError as error:
        raise _error(f"structured_outputs.json is not valid JSON: {error}") from None
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        raise _error(f"structured_outputs.json must be a JSON schema, an object, got {params.json[:80]}")
    if params.disable_additional_properties:
        schema = _closed(schema)
    own = schema.get("x-guidance") or {}
    if not isinstance(own, dict):
        raise _error("x-guidance in a JSON schema must be an object")
    return {"json_schema": {**schema, "x-guidance": {**own, **_whitespace(params)}}}


def _json_object(params: StructuredOutputsParams) -> dict[str, Any]:
    return {"json_schema": {"type": "object", "x-guidance": _whitespace(params)}}


def _regex(params: StructuredOutputsParams) -> dict[str, Any]:
    from llguidance import LLMatcher

    assert params.regex is not None
    [grammar] = json.loads(LLMatcher.grammar_from_regex(params.regex))["grammars"]
    return {"lark_grammar": grammar["lark_grammar"]}


def _choice(params: StructuredOutputsParams) -> dict[str, Any]:
    assert params.choice is not None
    return {"lark_grammar": "start: " + " | ".join(map(literal, params.choice))}


def _grammar(params: StructuredOutputsParams) -> dict[str, Any]:
    from jaxengine.grammar.gbnf import lark_of_gbnf

    assert params.grammar is not None
    if LARK.search(params.grammar):
        return {"lark_grammar": params.grammar}
    try:
        return {"lark_grammar": lark_of_gbnf(params.grammar)}
    except RecursionError:
        raise
    except Exception as error:  # the converter's own errors, and plain ones for what it did not foresee
        raise _error(f"structured_outputs.grammar is neither Lark nor GBNF: {error}") from None


def _structural_tag(params: StructuredOutputsParams) -> dict[str, Any]:
    """`{"structures": [{"begin", "schema", "end"}], "triggers": [...]}`: text, with a schema after each begin."""
    assert isinstance(params.structural_tag, str)
    try:
        given = json.loads(params.structural_tag)
        triggers, structures = given["triggers"], given["structures"]
        tags = [(tag["begin"], tag.get("schema", tag.get("grammar", {})), tag["end"]) for tag in structures]
        rules = [_tag(number, triggers, *tag) for number, tag in enumerate(tags)]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _error(
            "structured_outputs.structural_tag must be {'structures': [{'begin', 'schema', 'end'}, ...], 'triggers': [...]}: "
            f"{type(error).__name__} {error}"
        ) from None
    if not rules:
        raise _error("structured_outputs.structural_tag has no structures")
    names = " | ".join(f"tag_{number}" for number in range(len(rules)))
    return {"lark_grammar": "\n".join([f"start: ({names})* TEXT", r"TEXT: /(.|\n)*/", *rules])}


def _tag(number: int, triggers: list[str], begin: str, schema: object, end: str) -> str:
    trigger = next((trigger for trigger in triggers if trigger and begin.startswith(trigger)), None)
    if trigger is None:
        raise ValueError(f"no trigger begins {begin!r}")
    rest = literal(begin[len(trigger) :]) if begin != trigger else ""
    head = f"head_{number}[lazy]: TEXT {literal(trigger)}"
    return f"{head}\ntag_{number}: head_{number} {rest} {json_rule(schema)} {literal(end) if end else ''}"


def _whole(form: AnswerForm, special: Special) -> str:
    """The output, behind a block of free text where there is one."""
    announced = form.thinking is not None and form.thinking.answer
    answer = f"({_marker(announced, special)} @answer)" if announced else "@answer"
    output = answer if form.instead is None else f"({answer} | @instead)"
    lines = [OPTIONS, r"TEXT: /(.|\n)*/"]
    if form.triggered:
        lines.append(f"until_trigger{_until(form.markers[0], special)}")
        output = "(until_trigger @answer)* TEXT"
    thinking = form.thinking
    if thinking is None:
        return "\n".join([*lines, f"start: {output}"])
    begin = _marker(thinking.begin, special)
    # Some models open a block that the prompt has opened already.
    before = f"({begin})? until_end SPACE" if thinking.opened else f"({begin} until_end SPACE)?"
    lines += [r"SPACE: /\s{0,4}/", f"until_end{_until(thinking.end, special)}", f"start: {before} {output}"]
    return "\n".join(lines)


def _until(marker: str, special: Special) -> str:
    """The rest of a rule for free text up to and with a marker."""
    expression = _marker(marker, special)
    return f": TEXT {expression}" if special(marker) is not None else f"[suffix={expression}]: TEXT"


def _marker_rules(form: AnswerForm, special: Special) -> str:
    texts = [_marker(text, special) for text in form.markers]
    if form.triggered:
        texts[0] = '""'
    return "\n".join(f"marker_{number}: {text}" for number, text in enumerate(texts))


def _marker(text: str, special: Special) -> str:
    """A text of which some parts may be special tokens."""
    parts = [text] if special(text) is not None else [part for part in TOKENS.split(text) if part]
    return " ".join(literal(part) if (token := special(part)) is None else f"<[{token}]>" for part in parts)


def literal(text: str) -> str:
    """A Lark string literal."""
    return json.dumps(text, ensure_ascii=False)


def json_rule(schema: object) -> str:
    """A Lark rule for JSON of a schema."""
    extended = {**schema, "x-guidance": {"whitespace_pattern": WHITESPACE}} if isinstance(schema, Mapping) else schema
    return f"%json {json.dumps(extended, ensure_ascii=False)}"


def _whitespace(params: StructuredOutputsParams) -> dict[str, Any]:
    if params.disable_any_whitespace or params.whitespace_pattern == "":
        return {"whitespace_flexible": False}
    return {"whitespace_pattern": WHITESPACE if params.whitespace_pattern is None else params.whitespace_pattern}


def _closed(schema: Any) -> Any:
    """The schema with `additionalProperties: false` in each object that lists properties and says nothing about others."""
    if isinstance(schema, list):
        return [_closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed: dict[str, Any] = {}
    for key, value in schema.items():
        if key in ("properties", "patternProperties", "$defs", "definitions") and isinstance(value, dict):
            closed[key] = {name: _closed(part) for name, part in value.items()}
        else:
            closed[key] = value if key in ("const", "enum", "default", "examples") else _closed(value)
    lists = isinstance(schema.get("properties"), dict) or schema.get("type") == "object"
    if lists and not {"additionalProperties", "patternProperties", "unevaluatedProperties"} & schema.keys():
        closed["additionalProperties"] = False
    return closed


def _error(message: str) -> RequestError:
    return RequestError(message, param=PARAM)


_SOURCES: Mapping[str, Callable[[StructuredOutputsParams], dict[str, Any]]] = {
    "json": _json_schema,
    "json_object": _json_object,
    "regex": _regex,
    "choice": _choice,
    "grammar": _grammar,
    "structural_tag": _structural_tag,
}
