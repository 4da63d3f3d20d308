"""Errors in Anthropic's form, made of those in OpenAI's."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import orjson
from fastapi import Request, Response

from jaxengine.server.http.body import JsonRoute
from jaxengine.server.http.errors import ErrorBody, answer_error

KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def error_object(body: ErrorBody) -> dict[str, Any]:
    """The same error as Anthropic's clients read it."""
    error = body["error"]
    return {"type": "error", "error": {"type": KINDS.get(error["code"], "api_error"), "message": error["message"]}}


class MessagesRoute(JsonRoute):
    """A route whose errors have Anthropic's form."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The route's handler, with its errors written anew."""
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            try:
                response = await handler(request)
            except Exception as error:
                response = answer_error(request, error)
            if response.status_code >= 400 and response.body:
                headers = {name: value for name, value in response.headers.items() if not name.startswith("content-")}
                written = orjson.dumps(error_object(orjson.loads(response.body)))
                return Response(written, response.status_code, headers, media_type="application/json")
            return response

        return handle
