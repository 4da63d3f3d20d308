"""API keys: which routes need one. What is open is listed, so that whatever is forgotten, or does not exist, is closed."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Collection, Sequence

from starlette.routing import get_route_path
from starlette.types import ASGIApp, Receive, Scope, Send

from jaxengine.server.http.errors import error_body, error_response

HEALTH_PATHS = frozenset({"/health", "/ping"})
OPEN_PATHS = {
    "all": HEALTH_PATHS,
    "v1": HEALTH_PATHS
    | {"/metrics", "/load", "/version", "/docs", "/redoc", "/openapi.json"}
    | {"/tokenize", "/detokenize", "/tokenizer_info"},
}
"""Paths that need no key, by `api_key_scope`. Anything else, known or not, is closed."""


class RequireKey:
    """ASGI middleware: answers 401 unless a request bears one of the keys: `Authorization: Bearer KEY`, or `x-api-key: KEY`.

    It decides on the path that is routed, never on a URL put together from headers. Every key is compared, in constant time.
    """

    def __init__(self, app: ASGIApp, *, keys: Sequence[str], scope: str, pages: Collection[str] = ()) -> None:
        """`pages` are paths of files for browsers, which hold nothing of this server; `scope` says whether they are open."""
        self._app = app
        self._open = OPEN_PATHS[scope] | (frozenset(pages) if scope == "v1" else frozenset())
        self._digests = [hashlib.sha256(key.encode()).digest() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        closed = scope["type"] == "websocket" or (
            scope["type"] == "http" and get_route_path(scope) not in self._open and not self._has_key(scope)
        )
        if not closed:
            await self._app(scope, receive, send)
            return
        body = error_body(
            "This server needs an API key: send the header 'Authorization: Bearer KEY' with one of its keys.",
            kind="AuthenticationError",
            status=401,
        )
        await error_response(body, {"WWW-Authenticate": "Bearer"})(scope, receive, send)

    def _has_key(self, scope: Scope) -> bool:
        scheme, _, bearer = _only(scope, b"authorization").partition(b" ")
        given = [bearer if scheme.lower() == b"bearer" else b"", _only(scope, b"x-api-key")]
        digests = [hashlib.sha256(key.strip()).digest() for key in given]
        matches = [secrets.compare_digest(digest, known) for digest in digests for known in self._digests]
        return any(matches)


def _only(scope: Scope, name: bytes) -> bytes:
    """The value of a header that is there once; nothing otherwise."""
    values: list[bytes] = [value for given, value in scope["headers"] if given == name]
    return values[0] if len(values) == 1 else b""
