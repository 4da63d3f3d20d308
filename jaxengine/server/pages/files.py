"""The static files of the pages: read once from the package, served with a policy that lets nothing else in."""

from __future__ import annotations

import hashlib
import html
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, get_route_path

STATIC = Path(__file__).parent / "static"
PREFIX = "/pages/"
PATHS = {"/": "playground.html", "/dashboard": "dashboard.html"}
"""The pages by their paths. Everything that they load is beneath `PREFIX`."""

MEDIA_TYPES = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".txt": "text/plain",
}
BASE = "<!-- base -->"
"""Where a page says what its relative addresses start from, if it is behind a proxy that strips a prefix."""

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "media-src data:",
        "connect-src 'self'",
        "base-uri 'self'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types dompurify",
    )
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-cache",  # kept by the browser, and asked about each time
}


@dataclass(frozen=True, slots=True)
class StaticFile:
    """The bytes of a file and what a browser has to know of them."""

    body: bytes
    media_type: str
    etag: str

    @classmethod
    def of(cls, body: bytes, suffix: str) -> StaticFile:
        """A file of a kind that is told by the end of its name."""
        return cls(body, MEDIA_TYPES[suffix], f'"{hashlib.sha256(body).hexdigest()[:20]}"')

    def answer(self, request: Request) -> Response:
        """The file; 304 without it where the browser has it already."""
        headers = {**HEADERS, "ETag": self.etag}
        if self.etag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(self.body, media_type=self.media_type, headers=headers)


@cache
def static_files() -> dict[str, StaticFile]:
    """Every file that is served, by its path beneath `PREFIX`."""
    files = (path for path in sorted(STATIC.rglob("*")) if path.suffix in MEDIA_TYPES)
    return {path.relative_to(STATIC).as_posix(): StaticFile.of(path.read_bytes(), path.suffix) for path in files}


@cache
def page(path: str, root_path: str) -> StaticFile:
    """The page at a path of `PATHS`, for a server whose addresses begin with `root_path`."""
    prefix = root_path.strip("/")
    base = f'<base href="/{html.escape(prefix)}/">' if prefix else ""
    source = static_files()[PATHS[path]].body.decode()
    return StaticFile.of(source.replace(BASE, base, 1).encode(), ".html")


def file_routes(root_path: str) -> list[Route]:
    """Routes of the pages and of all that they load, for an app whose addresses begin with `root_path`."""

    async def show_page(request: Request) -> Response:
        return page(get_route_path(request.scope), root_path).answer(request)

    async def send_file(request: Request) -> Response:
        found = static_files().get(request.path_params["name"])
        if found is None:
            raise HTTPException(404)
        return found.answer(request)

    return [*(Route(path, show_page) for path in PATHS), Route(f"{PREFIX}{{name:path}}", send_file)]


def public_paths() -> frozenset[str]:
    """Paths that a browser has to load before it can be asked for a key. They hold what anyone finds in the package."""
    return frozenset({*PATHS, *(f"{PREFIX}{name}" for name in static_files())})
