"""Web pages that a browser on this machine shows must not reach a server without keys: not by its name, nor by theirs."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection

from starlette.types import ASGIApp, Receive, Scope, Send

from jaxengine.errors import ConfigError
from jaxengine.server.http.errors import error_body, error_response
from jaxengine.server.options import ServerConfig

ANY = "*"
UNSPECIFIED = ("0.0.0.0", "::")
"""Addresses that, called from a machine, mean itself."""
_HOST = re.compile(r"(\[(?P<address>[0-9A-Fa-f:.]+)\]|(?P<name>[^:\[\]@/]+))(:[0-9]*)?")


class KnownHosts:
    """ASGI middleware: answers 403 to a Host that is none of the server's, and to an Origin that may not call it.

    A page whose own name is made to resolve to the loopback address (DNS rebinding) is the same origin to a browser and is
    told by its Host. A page of another origin may send requests that need no permission, such as a POST without a body; it is
    told by its Origin. Programs that are no browsers send no Origin and the name that they were given.
    """

    def __init__(self, app: ASGIApp, *, hosts: Collection[str] | None, origins: Collection[str] | None) -> None:
        """`hosts` are the names that a request may call the server by, `origins` the foreign ones that may; None is any."""
        self._app = app
        self._hosts = hosts
        self._origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        problem = self._problem(scope) if scope["type"] == "http" else None
        if problem is None:
            await self._app(scope, receive, send)
            return
        await error_response(error_body(problem, kind="PermissionDeniedError", status=403))(scope, receive, send)

    def _problem(self, scope: Scope) -> str | None:
        called = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        if self._hosts is not None and not all(self._is_own(host_name(value)) for value in called):
            return "This server does not go by the name in the Host header: start it with --allowed-hosts NAME, or '*' for any."
        for origin in (value.decode("latin-1") for name, value in scope["headers"] if name == b"origin"):
            _, _, place = origin.partition("://")
            own = place != "" and place in called
            if self._origins is not None and not own and origin not in self._origins:
                return "Pages of this Origin may not call this server: start it with --allowed-origins ORIGIN, or with a key."
        return None

    def _is_own(self, name: str) -> bool:
        assert self._hosts is not None
        return name in self._hosts or ("localhost" in self._hosts and (is_loopback(name) or name in UNSPECIFIED))


def known_hosts(options: ServerConfig) -> dict[str, Collection[str] | None] | None:
    """The arguments of `KnownHosts`; None when every request may pass.

    Without `allowed_hosts`, a server without keys that listens on the loopback address goes by the names of that address alone;
    what others call a server that listens on more is not known.

    Raises:
        ConfigError: an allowed host that no Host header can name, or an empty key.
    """
    network = options.network
    keyless = not options.api_keys()
    hosts: Collection[str] | None = None
    if network.allowed_hosts is None:
        if keyless and network.uds is None and is_loopback(network.host):
            hosts = ("localhost",)
    elif ANY not in network.allowed_hosts:
        hosts = tuple(host_name(value) for value in network.allowed_hosts)
        for value, name in zip(network.allowed_hosts, hosts, strict=True):
            if not name:
                raise ConfigError(f"allowed_hosts: {value!r} is no host; write models.example, [::1], or * for any")
    origins = network.allowed_origins if keyless and ANY not in network.allowed_origins else None
    return None if hosts is None and origins is None else {"hosts": hosts, "origins": origins}


def host_name(value: str) -> str:
    """The name in a Host header, without its port and in lower case; empty when it is no name and port."""
    match = _HOST.fullmatch(value)
    return (match["address"] or match["name"]).lower() if match else ""


def is_loopback(name: str) -> bool:
    """Whether a name or an address can only mean this machine (RFC 6761 section 6.3, RFC 1122 section 3.2.1.3)."""
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
