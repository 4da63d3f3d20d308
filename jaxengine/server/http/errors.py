"""Errors in OpenAI's form: every way a request can fail ends here, and says no more than its sender may know."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import orjson
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from typing_extensions import TypedDict

from jaxengine.errors import DeadlineError, JaxEngineError, OverloadedError, PoisonError

logger = logging.getLogger("jaxengine")

LONGEST_VALUE = 100
"""Characters of a caller's value that an error repeats."""


class ErrorDetail(TypedDict):
    """What went wrong: for a person, and for a program."""

    message: str
    type: str
    param: str | None
    code: int


class ErrorBody(TypedDict):
    """The body of every answer that is not a success, and of an error inside a stream."""

    error: ErrorDetail


def error_body(message: str, *, kind: str, status: int, param: str | None = None) -> ErrorBody:
    """The body for one error."""
    return {"error": {"message": message, "type": kind, "param": param, "code": status}}


def describe(error: Exception) -> ErrorBody:
    """The body for an exception. What was not foreseen is logged under a number, and only the number is told."""
    if isinstance(error, RequestValidationError):
        return _invalid(error.errors())
    if isinstance(error, PoisonError) or (isinstance(error, JaxEngineError) and error.http_status != 500):
        param = getattr(error, "param", None)
        return error_body(str(error), kind=error.openai_type, status=error.http_status, param=param)
    incident = uuid.uuid4().hex[:12]
    logger.error("incident %s", incident, exc_info=error)
    return error_body(
        f"An internal error ended this request; the server's log has it as incident {incident}.",
        kind="InternalServerError",
        status=500,
    )


def headers_for(error: Exception) -> dict[str, str]:
    """Headers that tell a client whether to try again."""
    if isinstance(error, OverloadedError):
        return {"Retry-After": str(error.retry_after)}
    return {"x-should-retry": "false"} if isinstance(error, DeadlineError) else {}


def error_response(body: ErrorBody, headers: Mapping[str, str] | None = None) -> Response:
    """An answer with an error's own status."""
    return Response(
        orjson.dumps(body), body["error"]["code"], media_type="application/json", headers=dict(headers or {})
    )


def answer_error(request: Request, error: Exception) -> Response:
    """What a request is answered that ended with an exception."""
    if not isinstance(error, HTTPException):
        return error_response(describe(error), headers_for(error))
    phrase = HTTPStatus(error.status_code).phrase
    kind = KINDS.get(error.status_code, phrase)
    message = str(error.detail)
    if message == phrase:
        message = f"{phrase}: {request.method} {request.url.path[:LONGEST_VALUE]}"
    return error_response(error_body(message, kind=kind, status=error.status_code), error.headers)


def add_handlers(app: FastAPI) -> None:
    """Answer every exception in OpenAI's form."""

    async def on_error(request: Request, error: Exception) -> Response:
        return answer_error(request, error)

    for kind in (JaxEngineError, HTTPException, RequestValidationError):
        app.add_exception_handler(kind, on_error)


KINDS = {400: "BadRequestError", 401: "AuthenticationError", 404: "NotFoundError", 413: "BadRequestError"}


def _invalid(problems: Any) -> ErrorBody:
    """The first problem that validation found, with the field and the value."""
    first = problems[0]
    place = [str(part) for part in first.get("loc", ())[1:]]
    field = place[0] if place else None
    if field is None and isinstance(first.get("input"), bytes | None):
        return error_body(
            "The request needs a JSON object as its body, sent with Content-Type: application/json.",
            kind="Bad Request",
            status=400,
        )
    given = "" if first["type"] == "missing" else f", got {_shown(first.get('input'))}"
    where = f"{'.'.join(place)}: " if field else ""
    return error_body(f"{where}{first['msg']}{given}.", kind="Bad Request", status=400, param=field)


def _shown(value: Any) -> str:
    text = repr(value) if isinstance(value, (str, int, float, bool, type(None))) else f"a {type(value).__name__}"
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 3]}..."
