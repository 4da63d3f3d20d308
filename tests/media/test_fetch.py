"""Items are fetched from where they may be, within limits."""

from __future__ import annotations

import base64
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from jaxengine.media.access import MediaAccess
from jaxengine.media.errors import MediaError
from jaxengine.media.fetch import Fetcher
from jaxengine.media.public_network import is_public


class Host:
    """A host on this machine; `answers` says what its paths are: content, a place to go to, or what writes an answer."""

    def __init__(self) -> None:
        self.answers: dict[str, bytes | str | Callable[[BaseHTTPRequestHandler], None]] = {}
        self.asked: list[str] = []
        host = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                host.asked.append(self.path)
                answer = host.answers.get(self.path)
                if callable(answer):
                    answer(self)
                    return
                self.send_response(404 if answer is None else 302 if isinstance(answer, str) else 200)
                if isinstance(answer, str):
                    self.send_header("Location", answer)
                content = answer if isinstance(answer, bytes) else b""
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def host() -> Iterator[Host]:
    host = Host()
    yield host
    host.server.shutdown()
    host.server.server_close()


@pytest.fixture
def fetch() -> Iterator[Callable[..., bytes]]:
    fetchers = []

    def fetch(url: str, **access: object) -> bytes:
        fetchers.append(Fetcher(MediaAccess(**{"domains": ("127.0.0.1",), **access})))
        return fetchers[-1].fetch(url)

    yield fetch
    for fetcher in fetchers:
        fetcher.close()


Fetch = Callable[..., bytes]


def test_a_data_url_is_its_content(fetch: Fetch) -> None:
    assert fetch(f"data:image/png;base64,{base64.b64encode(b'abc').decode()}") == b"abc"
    assert fetch("data:,a%20b") == b"a b"


@pytest.mark.parametrize("url", ["data:image/png;base64", "data:image/png;base64,@@@@", "data:image/png;base64,YWJ"])
def test_a_malformed_data_url_is_refused(fetch: Fetch, url: str) -> None:
    with pytest.raises(MediaError, match="data URL"):
        fetch(url)


def test_a_host_is_asked_and_redirects_are_followed(fetch: Fetch, host: Host) -> None:
    host.answers = {"/a": "/b", "/b": f"{host.url}/c", "/c": b"picture"}
    assert fetch(f"{host.url}/a") == b"picture"
    assert host.asked == ["/a", "/b", "/c"]


def test_redirects_end(fetch: Fetch, host: Host) -> None:
    host.answers = {"/a": "/a"}
    with pytest.raises(MediaError, match="redirected more than 3 times"):
        fetch(f"{host.url}/a")
    assert len(host.asked) == 4


@pytest.mark.parametrize("where", ["file:///etc/passwd", "ftp://127.0.0.1/a", "data:,a", "http://elsewhere.invalid/a"])
def test_redirects_lead_only_where_the_request_might_have_asked(fetch: Fetch, host: Host, where: str) -> None:
    host.answers = {"/a": where}
    with pytest.raises(MediaError):
        fetch(f"{host.url}/a")


def test_a_private_address_is_not_asked_unless_its_host_is_named(fetch: Fetch, host: Host) -> None:
    host.answers = {"/a": b"secret"}
    for name in ("127.0.0.1", "localhost", "2130706433", "0x7f.1", "[::ffff:127.0.0.1]"):
        with pytest.raises(MediaError, match=r"not public|not found"):
            fetch(host.url.replace("127.0.0.1", name) + "/a", domains=())
    assert not host.asked


def test_a_name_is_checked_by_the_address_that_is_used(
    fetch: Fetch, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    addresses = iter(["93.184.215.14", "127.0.0.1"])  # public when first asked, private afterwards

    def resolve(name: str, port: int, **_: object) -> list[object]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (next(addresses), port))]

    connected: list[str] = []

    def connect(address: tuple[str, int], *_: object, **__: object) -> socket.socket:
        connected.append(address[0])
        raise OSError("nobody there")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr(socket, "create_connection", connect)
    with pytest.raises(MediaError, match="cannot be asked"):
        fetch(f"http://changing.example:{host.server.server_port}/a", domains=())
    assert connected == ["93.184.215.14"]
    with pytest.raises(MediaError, match="not public"):
        fetch(f"http://changing.example:{host.server.server_port}/a", domains=())
    assert connected == ["93.184.215.14"]


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("8.8.8.8", True),
        ("2606:4700::1111", True),
        ("10.0.0.1", False),
        ("100.64.0.1", False),
        ("169.254.169.254", False),
        ("0.0.0.0", False),
        ("224.0.0.1", False),
        ("::1", False),
        ("fe80::1%eth0", False),
        ("fd00::1", False),
        ("::ffff:169.254.169.254", False),
        ("64:ff9b::a9fe:a9fe", False),
        ("2002:7f00:1::", False),
    ],
)
def test_which_addresses_are_public(address: str, public: bool) -> None:
    assert is_public(address) is public


def test_only_named_hosts_are_asked_where_some_are_named(fetch: Fetch, host: Host) -> None:
    with pytest.raises(
        MediaError, match=r"'127\.0\.0\.1' are not fetched: --allowed-media-domains names images\.example"
    ):
        fetch(f"{host.url}/a", domains=("images.example",))
    assert not host.asked


def test_an_item_that_is_too_much_is_given_up_while_it_comes(fetch: Fetch, host: Host) -> None:
    sent = []

    def endless(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        try:
            for _ in range(1000):
                handler.wfile.write(bytes(1 << 20))
                sent.append(1)
        except OSError:
            pass

    host.answers = {"/a": endless}
    with pytest.raises(MediaError, match="more than 2 MiB"):
        fetch(f"{host.url}/a", max_bytes=2 << 20)
    assert len(sent) < 100


def test_a_host_that_sends_now_and_then_is_given_up(fetch: Fetch, host: Host) -> None:
    over = threading.Event()

    def drip(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        try:
            while not over.wait(0.05):
                handler.wfile.write(b".")
                handler.wfile.flush()
        except OSError:
            pass

    host.answers = {"/a": drip}
    begun = time.monotonic()
    with pytest.raises(MediaError, match=r"within 0\.5 s"):
        fetch(f"{host.url}/a", timeout_s=0.5)
    assert time.monotonic() - begun < 30  # and not for ever
    over.set()


@pytest.mark.parametrize(
    "url", ["", "picture.png", "gopher://a/b", "http://", "http://user@127.0.0.1/a", "http://[::1/a", "http://a:b/c"]
)
def test_other_urls_are_refused(fetch: Fetch, url: str) -> None:
    with pytest.raises(MediaError):
        fetch(url)


def test_what_is_not_there_is_said(fetch: Fetch, host: Host) -> None:
    with pytest.raises(MediaError, match="answered 404"):
        fetch(f"{host.url}/a")


def test_files_are_read_only_under_their_folder(fetch: Fetch, tmp_path: Path) -> None:
    inside, outside = tmp_path / "media" / "a b.png", tmp_path / "secret"
    inside.parent.mkdir()
    inside.write_bytes(b"abc")
    outside.write_bytes(b"secret")
    (tmp_path / "media" / "link").symlink_to(outside)
    folder = tmp_path / "media"
    assert fetch(f"file://{inside.as_posix().replace(' ', '%20')}", folder=folder) == b"abc"
    for path in (outside, folder / ".." / "secret", folder / "link", folder, folder / "none", f"{folder}/a\0b"):
        with pytest.raises(MediaError):
            fetch(f"file://{path}", folder=folder)
    with pytest.raises(MediaError, match="allowed-local-media-path"):
        fetch(f"file://{inside}")
    with pytest.raises(MediaError, match="another host"):
        fetch(f"file://elsewhere{inside}", folder=folder)
    with pytest.raises(MediaError, match="more than 0 MiB"):
        fetch(f"file://{folder}/a%20b.png", folder=folder, max_bytes=2)
