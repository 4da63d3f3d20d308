"""The tree of errors: as drawn, each with its HTTP status."""

from __future__ import annotations

import re

import pytest

from jaxengine import errors
from jaxengine.errors import JaxEngineError, RequestError, nearest


def subclasses(kind: type[Exception]) -> set[type[Exception]]:
    return {kind}.union(*(subclasses(child) for child in kind.__subclasses__() if child.__module__ == errors.__name__))


def test_the_tree_in_the_docstring_is_the_tree_in_the_code() -> None:
    parents: dict[str, str] = {}
    above: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"^([ │├└─]*)([A-Z]\w+Error)\b", line)
        if found:
            depth = len(found[1]) // 4 - 1
            above[depth:] = [found[2]]
            parents[found[2]] = above[depth - 1] if depth else "Exception"
    assert parents == {kind.__name__: kind.__bases__[0].__name__ for kind in subclasses(JaxEngineError)}


STATUS = {
    "JaxEngineError": (500, "InternalServerError"),
    "ConfigError": (400, "BadRequestError"),
    "CheckpointError": (500, "InternalServerError"),
    "CapacityError": (500, "InternalServerError"),
    "BundleError": (500, "InternalServerError"),
    "RequestError": (400, "BadRequestError"),
    "ContextLengthError": (400, "BadRequestError"),
    "ModelNotFoundError": (404, "NotFoundError"),
    "UnsupportedError": (400, "BadRequestError"),
    "UnplannedShapeError": (500, "InternalServerError"),
    "OverloadedError": (503, "ServiceUnavailableError"),
    "DeadlineError": (504, "TimeoutError"),
    "EngineDeadError": (503, "ServiceUnavailableError"),
}


def test_every_error_knows_its_http_status_and_openai_type() -> None:
    assert {kind.__name__: (kind.http_status, kind.openai_type) for kind in subclasses(JaxEngineError)} == STATUS


def test_a_request_error_names_the_field() -> None:
    assert RequestError("n is wrong", param="n").param == "n"
    assert RequestError("wrong").param is None
    assert str(RequestError("n is wrong", param="n")) == "n is wrong"


@pytest.mark.parametrize(
    ("name", "hint"), [("top_q", " Did you mean 'top_p'?"), ("TOP", ""), ("", ""), ("top_k", " Did you mean 'top_k'?")]
)
def test_the_nearest_name_is_offered_when_one_is_near(name: str, hint: str) -> None:
    assert nearest(name, iter(["top_p", "top_k", "min_p"])) == hint
