from __future__ import annotations

from typing import Any

import pytest

from jaxengine.contract.structured_outputs import StructuredOutputsParams
from jaxengine.errors import RequestError


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "exactly one of .*, got none"),
        ({"json": {}, "regex": "a"}, "exactly one of .*, got json and regex"),
        ({"json_object": False}, "got none"),
        ({"json": 3}, "json must be text, got int"),
        ({"json": {"a": {1, 2}}}, "json is not JSON"),
        ({"regex": ["a"]}, "regex must be text, got list"),
        ({"choice": []}, "choice must be a list of one or more strings"),
        ({"choice": "yes"}, "choice must be a list of one or more strings, got 'yes'"),
        ({"choice": ["a", 1]}, "choice must hold non-empty strings"),
        ({"choice": ["a", ""]}, "choice must hold non-empty strings"),
        ({"json_object": "yes"}, "json_object must be True or False"),
        ({"regex": "a", "whitespace_pattern": " "}, "white space options are for JSON"),
        ({"json_object": True, "disable_additional_properties": True}, "needs a JSON schema"),
        ({"jsn": "{}"}, r"unknown structured output option 'jsn'. Did you mean 'json'\?"),
    ],
)
def test_what_is_wrong_is_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message) as refused:
        StructuredOutputsParams(**fields)
    assert refused.value.param == "structured_outputs"


def test_equal_requests_are_equal_keys_and_the_order_of_properties_matters() -> None:
    schema = {"type": "object", "properties": {"b": {}, "a": {}}}
    assert hash(StructuredOutputsParams(json=schema)) == hash(StructuredOutputsParams(json=dict(schema)))
    assert StructuredOutputsParams(json=schema) == StructuredOutputsParams(json=dict(schema))
    other = {"type": "object", "properties": {"a": {}, "b": {}}}
    assert StructuredOutputsParams(json=schema) != StructuredOutputsParams(json=other)
    assert StructuredOutputsParams(choice=["a", "b", "a"]).choice == ("a", "b")


@pytest.mark.parametrize("kind", ["json", "regex", "choice", "grammar", "json_object", "structural_tag"])
def test_kind_names_the_constraint(kind: str) -> None:
    value: Any = {"json_object": True, "choice": ["a"]}.get(kind, "{}")
    assert StructuredOutputsParams(**{kind: value}).kind == kind
