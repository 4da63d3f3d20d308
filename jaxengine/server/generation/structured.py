"""What a body asks of the form of its answer: OpenAI's `response_format`, vLLM's `structured_outputs`, the older `guided_*`."""

from __future__ import annotations

from typing import Any

from jaxengine.contract.structured_outputs import StructuredOutputsParams
from jaxengine.errors import RequestError, UnsupportedError
from jaxengine.server.generation.protocol import SamplingRequest
from jaxengine.server.http.fields import JsonObject

GUIDED = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "guided_json_object": "json_object",
    "guided_whitespace_pattern": "whitespace_pattern",
}
"""vLLM's older fields, and the newer ones that they mean."""


def structured_outputs(body: SamplingRequest, response_format: JsonObject | None) -> StructuredOutputsParams | None:
    """The form that a body asks for, perhaps with OpenAI's `response_format`; None when it asks for none.

    Raises:
        RequestError: more than one form, or a malformed one.
        UnsupportedError: a response format that is not built.
    """
    own = body.structured_outputs or {}
    asked = {
        "response_format": _response_format(response_format),
        "structured_outputs": {key: value for key, value in own.items() if value is not None},
        "guided_*": {new: value for old, new in GUIDED.items() if (value := getattr(body, old)) is not None},
    }
    given = {name: fields for name, fields in asked.items() if fields}
    if len(given) > 1:
        raise RequestError(f"{' and '.join(given)} exclude each other; give one", param=next(iter(given)))
    for name, fields in given.items():
        try:
            return StructuredOutputsParams(**fields)
        except RequestError as error:
            raise RequestError(f"{name}: {error}", param=name) from None
    return None


def _response_format(given: JsonObject | None) -> dict[str, Any]:
    if given is None:
        return {}
    kind = given.get("type")
    if kind == "text":
        return {}
    if kind == "json_object":
        return {"json_object": True}
    if kind == "json_schema":
        described = given.get("json_schema")
        schema = described.get("schema") if isinstance(described, dict) else None
        if not isinstance(schema, (dict, bool)):
            raise RequestError.of("response_format", "of type json_schema needs json_schema.schema, a JSON schema")
        return {"json": schema}
    if kind == "structural_tag":
        return {"structural_tag": {key: value for key, value in given.items() if key != "type"}}
    raise UnsupportedError.of(
        "response_format", f"type must be text, json_object, json_schema or structural_tag, got {str(kind)[:100]!r}"
    )
