"""Connections to public addresses only: a name is resolved once, and what was checked is what is connected to."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable
from typing import Any

import httpcore

from jaxengine.media.access import MediaAccess
from jaxengine.media.errors import MediaError


class PublicNetwork(httpcore.NetworkBackend):
    """Resolves names itself, so that a name cannot mean a public address when it is checked and another when it is used."""

    def __init__(self, access: MediaAccess) -> None:
        self._access = access
        self._network = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        """Connect to the first address of `host` that answers.

        Raises:
            MediaError: no such host, or an address of it is not public.
        """
        addresses = _addresses(host, port)
        if not self._access.may_be_private(host):
            for address in addresses:
                if not is_public(address):
                    raise MediaError(
                        f"the host {host!r} has an address that is not public, and such are not asked "
                        "(--allowed-media-domains may name it)"
                    )
        failed: httpcore.ConnectError | httpcore.ConnectTimeout | None = None
        for address in addresses:
            try:
                return self._network.connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failed = error
        assert failed is not None
        raise failed


def is_public(address: str) -> bool:
    """Whether anybody on the internet may be reached by it: neither private, link-local, loopback, multicast nor reserved."""
    found = ipaddress.ip_address(address.partition("%")[0])
    for inner in (getattr(found, "ipv4_mapped", None), getattr(found, "sixtofour", None)):
        if inner is not None:
            return is_public(str(inner))
    if isinstance(found, ipaddress.IPv6Address) and found in ipaddress.ip_network("64:ff9b::/96"):
        return is_public(str(ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)))  # an IPv4 address behind a translator
    return found.is_global and not found.is_multicast


def _addresses(host: str, port: int) -> list[str]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise MediaError(f"the host {host!r} is not found") from error
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))
