"""The OpenAPI description as the server really answers: errors in OpenAI's form, no 422."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import TypeAdapter

from jaxengine.server.http.errors import ErrorBody

_EVENT = {
    "type": "object",
    "description": "An event of the stream, with stream=true: data is a JSON object, or [DONE].",
    "properties": {"event": {"type": "string"}, "data": {"type": "string"}},
    "required": ["data"],
}
STREAMED: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {"schema": _EVENT}}}}
"""`responses=` of a route whose answer may also be a stream."""

ANSWERS = {
    "400": "The request is wrong; the message says what and what is allowed.",
    "401": "No valid API key.",
    "403": "A name or a web page that may not call this server.",
    "404": "No such model or object.",
    "413": "The body is too long.",
    "429": "Too much of this key or user is queued.",
    "500": "A fault of the server's own.",
    "503": "Too much is queued, the server is shutting down, or the engine has stopped.",
    "504": "The request was not done in time.",
}


def describe_errors(app: FastAPI) -> None:
    """Put every error that a route may answer with into the app's description."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(title=app.title, version=app.version, routes=app.routes)
            schemas = schema.setdefault("components", {}).setdefault("schemas", {})
            own = TypeAdapter(ErrorBody).json_schema(ref_template="#/components/schemas/{model}")
            schemas.update(own.pop("$defs", {}))
            schemas["ErrorBody"] = own
            for name in ("HTTPValidationError", "ValidationError"):
                schemas.pop(name, None)
            for operations in schema["paths"].values():
                for operation in operations.values():
                    _describe(operation["responses"])
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _describe(responses: dict[str, Any]) -> None:
    responses.pop("422", None)
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorBody"}}}
    for status, description in ANSWERS.items():
        responses.setdefault(status, {"description": description, "content": content})
