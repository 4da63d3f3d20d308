"""What a request and its answer say of other engines: vLLM's `kv_transfer_params`, read and written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jaxengine.errors import RequestError, nearest
from jaxengine.options.transfer import Address

NAME = "kv_transfer_params"
FLAGS = ("do_remote_decode", "do_remote_prefill")
KEYS = (
    *FLAGS,
    "remote_engine_id",
    "remote_request_id",
    "remote_block_ids",
    "remote_host",
    "remote_port",
    "tp_size",
)
LONGEST_HOST = 255


@dataclass(frozen=True, slots=True)
class TransferParams:
    """What a request asks for: another engine will go on with it (`hands_over`), or has computed its prompt.

    `source` is where that engine serves pages, where it was said. Pages are found by what they hold: ids of requests and blocks,
    which vLLM's engines need, are taken and mean nothing.
    """

    hands_over: bool = False
    takes_over: bool = False
    source: Address | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferFacts:
    """How a started engine takes part in the transfer of pages: what it may be asked for, and where others find its pages."""

    engine_id: str
    serves: bool
    fetches: bool
    address: Address

    def answer(self) -> Mapping[str, Any]:
        """The `kv_transfer_params` that another engine is to be given with the same prompt."""
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_engine_id": self.engine_id,
            "remote_block_ids": [],
            "remote_host": self.address.host,
            "remote_port": self.address.port,
        }


def read_transfer_params(given: object) -> TransferParams | None:
    """What `kv_transfer_params` of a request ask for; None when they ask for nothing.

    Raises:
        RequestError: an unknown key, or a value that is not allowed.
    """
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise RequestError.of(NAME, f"must be an object, got {type(given).__name__}")
    for key in given:
        if key not in KEYS:
            raise RequestError.of(NAME, f"has an unknown key {str(key)[:80]!r}.{nearest(str(key)[:80], KEYS)}")
    for key in FLAGS:
        if not isinstance(given.get(key) or False, bool):
            raise RequestError.of(NAME, f"{key} must be true or false")
    hands_over, takes_over = (bool(given.get(key)) for key in FLAGS)
    if hands_over and takes_over:
        raise RequestError.of(NAME, "do_remote_decode and do_remote_prefill contradict each other; give one")
    if not hands_over and not takes_over:
        return None
    return TransferParams(hands_over, takes_over, _source(given) if takes_over else None)


def _source(given: Mapping[str, Any]) -> Address | None:
    host, port = given.get("remote_host"), given.get("remote_port")
    if host is None and port is None:
        return None
    if not isinstance(host, str) or not 0 < len(host) <= LONGEST_HOST:
        raise RequestError.of(NAME, f"remote_host must be a name or address of at most {LONGEST_HOST} characters")
    if isinstance(port, bool) or not isinstance(port, int) or not 0 < port < 65536:
        raise RequestError.of(NAME, f"remote_port must be a whole number from 1 to 65535, got {str(port)[:80]}")
    return Address(host, port)
