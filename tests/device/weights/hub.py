"""A stand-in of the model hub on the loopback interface: enough of its HTTP interface for snapshot downloads."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit


@dataclass
class Repository:
    """Files by commit. `refs` maps branches and tags to commits; a moved branch is a changed entry."""

    commits: dict[str, dict[str, bytes]]
    refs: dict[str, str]
    gated: bool = False
    token: str | None = None


@dataclass
class Hub:
    """What is served, and what was asked for: `(method, path)` of every request, `(commit, file)` of every file."""

    repositories: dict[str, Repository]
    endpoint: str = ""
    requests: list[tuple[str, str]] = field(default_factory=list)
    downloads: list[tuple[str, str]] = field(default_factory=list)
    move_main_to: str | None = None


@contextmanager
def serve(repositories: dict[str, Repository]) -> Iterator[Hub]:
    """Serve the repositories until the block ends."""
    hub = Hub(repositories)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Requests,), {"hub": hub}))
    hub.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Requests(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def log_message(self, format: str, *arguments: object) -> None:
        """Silence."""

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append((self.command, path))
        is_api = path.startswith("/api/models/")
        owner, name, *rest = path.removeprefix("/api/models/").strip("/").split("/")
        repository = self.hub.repositories.get(f"{owner}/{name}")
        if repository is None:
            return self._refuse(404, "RepoNotFound")
        if repository.gated and self.headers.get("Authorization") != f"Bearer {repository.token}":
            return self._refuse(403, "GatedRepo")
        action, revision, *file = rest if rest else ("revision", "main")
        commit = repository.refs.get(revision, revision)
        if commit not in repository.commits:
            return self._refuse(404, "RevisionNotFound")
        files = repository.commits[commit]
        if is_api and action == "tree":
            tree = [
                {"type": "file", "path": path, "size": len(data), "oid": _etag(data)} for path, data in files.items()
            ]
            return self._send(json.dumps(tree).encode(), {"Content-Type": "application/json"})
        if is_api:
            info = {"id": f"{owner}/{name}", "sha": commit, "siblings": [{"rfilename": path} for path in files]}
            self._send(json.dumps(info).encode(), {"Content-Type": "application/json"})
            if self.hub.move_main_to is not None:
                repository.refs["main"] = self.hub.move_main_to
            return None
        data = files.get("/".join(file))
        if data is None:
            return self._refuse(404, "EntryNotFound")
        if self.command == "GET":
            self.hub.downloads.append((commit, "/".join(file)))
        return self._send(data, {"ETag": f'"{_etag(data)}"', "X-Repo-Commit": commit})

    def _refuse(self, status: int, code: str) -> None:
        self._send(b"", {"X-Error-Code": code, "X-Error-Message": code}, status=status)

    def _send(self, body: bytes, headers: dict[str, str], *, status: int = 200) -> None:
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(body))}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


def _etag(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()
