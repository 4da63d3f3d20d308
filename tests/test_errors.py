"""The tree of errors: as drawn, each with its HTTP status."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

import jaxengine
from jaxengine import errors
from jaxengine.errors import JaxEngineError, RequestError, nearest


def modules_with_errors() -> set[str]:
    """The modules of the package that define exceptions, found in their text: importing all of it would load JAX."""
    root = Path(jaxengine.__file__).parent
    texts = {path: path.read_text() for path in root.rglob("*.py")}
    files = {
        path for path, text in texts.items() if re.search(r"^ *class \w+\(.*(Error|Exception)\b", text, re.MULTILINE)
    }
    return {".".join(("jaxengine", *path.relative_to(root).with_suffix("").parts)) for path in files}


def subclasses(kind: type[Exception]) -> set[type[Exception]]:
    return {kind}.union(*(subclasses(child) for child in kind.__subclasses__()))


@pytest.fixture(scope="module")
def classes() -> set[type[Exception]]:
    for module in modules_with_errors():
        importlib.import_module(module)
    return {kind for kind in subclasses(JaxEngineError) if kind.__module__.startswith("jaxengine.")}


def test_the_tree_in_the_docstring_is_the_tree_in_the_code(classes: set[type[Exception]]) -> None:
    parents: dict[str, str] = {}
    above: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"^([ │├└─]*)([A-Z]\w+Error)\b", line)
        if found:
            depth = len(found[1]) // 4 - 1
            above[depth:] = [found[2]]
            parents[found[2]] = above[depth - 1] if depth else "Exception"
    assert parents == {kind.__name__: kind.__bases__[0].__name__ for kind in classes}


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
    "AbsentError": (400, "BadRequestError"),
    "MediaError": (400, "BadRequestError"),
    "NotKeptError": (404, "NotFoundError"),
    "NotServedError": (404, "NotFoundError"),
    "UnplannedShapeError": (500, "InternalServerError"),
    "MissingTokensError": (500, "InternalServerError"),
    "PoisonError": (500, "InternalServerError"),
    "ServerError": (500, "InternalServerError"),
    "OverloadedError": (503, "ServiceUnavailableError"),
    "ShareFullError": (429, "RateLimitError"),
    "DeadlineError": (504, "TimeoutError"),
    "EngineDeadError": (503, "ServiceUnavailableError"),
    "ResponseNotFoundError": (404, "NotFoundError"),
    "GrammarError": (500, "InternalServerError"),
    "CheckerError": (500, "InternalServerError"),
}


def test_every_error_knows_its_http_status_and_openai_type(classes: set[type[JaxEngineError]]) -> None:
    assert {kind.__name__: (kind.http_status, kind.openai_type) for kind in classes} == STATUS


def test_a_request_error_names_the_field() -> None:
    assert RequestError("n is wrong", param="n").param == "n"
    assert RequestError("wrong").param is None
    assert str(RequestError("n is wrong", param="n")) == "n is wrong"


@pytest.mark.parametrize(
    ("name", "hint"), [("top_q", " Did you mean 'top_p'?"), ("TOP", ""), ("", ""), ("top_k", " Did you mean 'top_k'?")]
)
def test_the_nearest_name_is_offered_when_one_is_near(name: str, hint: str) -> None:
    assert nearest(name, iter(["top_p", "top_k", "min_p"])) == hint
