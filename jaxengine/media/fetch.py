"""The bytes that a URL stands for: in itself (`data:`), in a file, or on another host."""

from __future__ import annotations

import base64
import binascii
import time
from collections.abc import Callable
from urllib.parse import unquote, unquote_to_bytes, urljoin, urlsplit

import httpcore

from jaxengine import __version__
from jaxengine.media.access import MIB, MediaAccess
from jaxengine.media.errors import MediaError
from jaxengine.media.public_network import PublicNetwork

REDIRECTS = (301, 302, 303, 307, 308)
CHUNK = 1 << 16


class Fetcher:
    """Fetches what requests name, as far as `access` allows. Blocks: call it on a thread of its own; several may at once."""

    def __init__(self, access: MediaAccess, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.access = access
        self._clock = clock
        self._pool = httpcore.ConnectionPool(network_backend=PublicNetwork(access), max_keepalive_connections=0)

    def close(self) -> None:
        """End what is open."""
        self._pool.close()

    def fetch(self, url: str) -> bytes:
        """The content of one item.

        Raises:
            MediaError: the URL is none, may not be asked, does not answer in time, or is of too much.
        """
        scheme = url.partition(":")[0].lower()
        if scheme == "data":
            return self._within(decode_data_url(url))
        if scheme == "file":
            return self._read(url)
        if scheme in ("http", "https"):
            return self._ask(url)
        raise MediaError(
            f"the URL of an item begins with {_shown(scheme)}: data, http, https and file are what is fetched"
        )

    def _read(self, url: str) -> bytes:
        parts = urlsplit(url)
        if parts.netloc not in ("", "localhost"):
            raise MediaError("a file URL names another host; only files of the server are read")
        with self.access.file(unquote(parts.path)).open("rb") as file:
            return self._within(file.read(self.access.max_bytes + 1))

    def _within(self, content: bytes) -> bytes:
        if len(content) > self.access.max_bytes:
            raise self._too_much()
        return content

    def _too_much(self) -> MediaError:
        return MediaError(
            f"an item has more than {self.access.max_bytes // MIB} MiB, which is the most that is fetched"
        )

    def _ask(self, url: str) -> bytes:
        until = self._clock() + self.access.timeout_s
        for _ in range(self.access.max_redirects + 1):
            host = checked_host(url)
            self.access.check_host(host)
            try:
                answer = self._answer(url, until)
            except (httpcore.TimeoutException, TimeoutError) as error:
                raise MediaError(f"{host!r} did not send an item within {self.access.timeout_s:g} s") from error
            except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.UnsupportedProtocol) as error:
                raise MediaError(f"{host!r} cannot be asked for an item: {_shown(str(error))}") from error
            if isinstance(answer, bytes):
                return answer
            url = urljoin(url, answer)
        raise MediaError(f"an item was redirected more than {self.access.max_redirects} times")

    def _answer(self, url: str, until: float) -> bytes | str:
        """The content, or where it is."""
        headers = [("User-Agent", f"jaxengine/{__version__}"), ("Accept-Encoding", "identity")]
        left = self._left(until)
        timeouts = {"connect": left, "read": left, "write": left, "pool": left}
        with self._pool.stream("GET", url, headers=headers, extensions={"timeout": timeouts}) as response:
            if response.status in REDIRECTS:
                where = next((value for name, value in response.headers if name.lower() == b"location"), None)
                if where is None:
                    raise MediaError("an item was redirected to nowhere")
                return where.decode("latin-1")
            if response.status != 200:
                raise MediaError(f"{urlsplit(url).hostname!r} answered {response.status} where an item was to be")
            content = bytearray()
            for chunk in response.iter_stream():
                content += chunk
                if len(content) > self.access.max_bytes:
                    raise self._too_much()
                self._left(until)  # a host that sends a byte now and then is never late by itself
            return bytes(content)

    def _left(self, until: float) -> float:
        left = until - self._clock()
        if left <= 0:
            raise TimeoutError
        return left


def decode_data_url(url: str) -> bytes:
    """The content of `data:[type][;base64],...`.

    Raises:
        MediaError: it has no comma, or is not base64.
    """
    kind, comma, content = url.partition(",")
    if not comma:
        raise MediaError("a data URL has no content: data:image/png;base64,...")
    if not kind.lower().endswith(";base64"):
        return unquote_to_bytes(content)
    try:
        return base64.b64decode(content, validate=True)
    except (binascii.Error, ValueError) as error:
        raise MediaError(f"a data URL is not base64: {error}") from error


def checked_host(url: str) -> str:
    """The host of an http URL.

    Raises:
        MediaError: it is no such URL, or has a user's name in it.
    """
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise MediaError(f"the URL of an item is malformed: {_shown(str(error))}") from error
    if parts.scheme not in ("http", "https"):
        raise MediaError(f"an item was redirected to {_shown(parts.scheme)}; only http and https are followed")
    if not host:
        raise MediaError("the URL of an item has no host")
    if "@" in parts.netloc or "\\" in url:
        raise MediaError("the URL of an item has a user's name or a backslash in it, which is not taken")
    return host


def _shown(text: str) -> str:
    return repr(text if len(text) <= 80 else f"{text[:77]}...")
