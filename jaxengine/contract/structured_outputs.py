"""What a user may ask of the form of an output: vLLM's names, exactly one constraint, validated when constructed."""

from __future__ import annotations

import dataclasses
import json as json_library
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jaxengine.errors import RequestError, nearest

CONSTRAINTS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")


@dataclass(frozen=True, kw_only=True)
class StructuredOutputsParams:
    """The output has this form, always. Exactly one of `json` to `structural_tag` is given.

    Args:
        json: a JSON schema, as text or as a dict.
        regex: a regular expression for the whole output, in Rust's syntax (no look-around).
        choice: the output is one of these strings.
        grammar: a context-free grammar in Lark or GBNF (EBNF) syntax.
        json_object: True for any JSON object.
        structural_tag: OpenAI-style structural tags, as JSON text or as a dict: free text with constrained parts.
        disable_any_whitespace: compact JSON, no white space between tokens.
        disable_additional_properties: objects of the schema that do not say otherwise take no further properties.
        whitespace_pattern: regular expression of what may stand where JSON allows white space.

    Raises:
        RequestError: none or several constraints, or a value of the wrong type.
    """

    json: str | Mapping[str, Any] | bool | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | Mapping[str, Any] | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None

    if not TYPE_CHECKING:  # a type checker knows the names from the fields

        def __new__(cls, **fields: Any) -> StructuredOutputsParams:
            known = {field.name for field in dataclasses.fields(cls)}
            for name in fields:
                if name not in known:
                    raise _error(f"unknown structured output option {name!r}.{nearest(name, known)}")
            return super().__new__(cls)

    def __post_init__(self) -> None:
        # Schemas become text, so that the value is hashable: it is the key of the grammar cache.
        for name in ("json", "structural_tag"):
            if isinstance(getattr(self, name), (Mapping, bool)):
                object.__setattr__(self, name, _json_text(name, getattr(self, name)))
        if self.choice is not None:
            object.__setattr__(self, "choice", _choices(self.choice))
        if self.json_object is False:
            object.__setattr__(self, "json_object", None)
        given = [name for name in CONSTRAINTS if getattr(self, name) is not None]
        if len(given) != 1:
            found = " and ".join(given) or "none"
            raise _error(f"structured_outputs needs exactly one of {', '.join(CONSTRAINTS)}, got {found}")
        self._check_types()

    @property
    def kind(self) -> str:
        """Which of the constraints is given."""
        return next(name for name in CONSTRAINTS if getattr(self, name) is not None)

    def _check_types(self) -> None:
        for name in ("json", "regex", "grammar", "structural_tag", "whitespace_pattern"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise _error(f"structured_outputs.{name} must be text, got {type(value).__name__}")
        for name in ("disable_any_whitespace", "disable_additional_properties", "json_object"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, bool):
                raise _error(f"structured_outputs.{name} must be True or False, got {value!r}")
        if self.kind not in ("json", "json_object") and (self.whitespace_pattern or self.disable_any_whitespace):
            raise _error(f"white space options are for JSON; structured_outputs has {self.kind}")
        if self.kind != "json" and self.disable_additional_properties:
            raise _error("structured_outputs.disable_additional_properties needs a JSON schema in json")


def _json_text(name: str, value: object) -> str:
    try:
        return json_library.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise _error(f"structured_outputs.{name} is not JSON: {error}") from None


def _choices(choices: object) -> tuple[str, ...]:
    if isinstance(choices, (str, bytes)) or not isinstance(choices, Sequence) or not choices:
        raise _error(f"structured_outputs.choice must be a list of one or more strings, got {choices!r}")
    if not all(isinstance(choice, str) and choice for choice in choices):
        raise _error(f"structured_outputs.choice must hold non-empty strings, got {choices!r}")
    return tuple(dict.fromkeys(choices))


def _error(message: str) -> RequestError:
    return RequestError(message, param="structured_outputs")
