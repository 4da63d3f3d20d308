"""Pages of the KV cache between engines as they are asked for: vLLM's `kv_transfer_config`, read and checked."""

from __future__ import annotations

import ipaddress
import os
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxengine.errors import ConfigError, nearest

TCP = "TcpConnector"
SHARED_STORAGE = "SharedStorageConnector"
CONNECTORS = (TCP, SHARED_STORAGE)
ROLES = ("kv_producer", "kv_consumer", "kv_both")

KEYS = (
    "kv_connector",
    "kv_role",
    "engine_id",
    "kv_ip",
    "kv_port",
    "kv_buffer_size",
    "kv_load_failure_policy",
    "kv_connector_extra_config",
)
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "kv_buffer_device": ("cpu", "cuda", "tpu"),
    "kv_rank": (None, 0, 1),
    "kv_parallel_size": (1, 2),
    "kv_connector_module_path": (None,),
    "enable_permute_local_kv": (False,),
}
"""vLLM's keys that have nothing to choose here, with the values that ask for what is done anyway."""

EXTRA_KEYS: Mapping[str, tuple[str, ...]] = {
    TCP: ("secret_file", "secret_env", "peers", "advertise_host", "shared_memory"),
    SHARED_STORAGE: ("shared_storage_path",),
}
ADDRESS = re.compile(r"(?:\[(?P<v6>[0-9a-fA-F:.]+)\]|(?P<host>[\w.-]+))(?::(?P<port>\d{1,5}))?", re.ASCII)
LEAST_SECRET = 16
"""Bytes of the shortest secret."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where an engine serves pages. A port of None, in a list of who may be asked, is any."""

    host: str
    port: int | None

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port is None else f"{host}:{self.port}"

    @classmethod
    def parse(cls, text: object) -> Address:
        """Read `host`, `host:port`, `[v6]` or `[v6]:port`.

        Raises:
            ConfigError: it is none of these.
        """
        found = ADDRESS.fullmatch(text) if isinstance(text, str) else None
        if found is not None:
            host, port = found["v6"] or found["host"], found["port"]
            if port is None or 0 < int(port) < 65536:
                return cls(host, None if port is None else int(port))
        raise ConfigError(f"{text!r} is not an address; write host, host:port or [v6]:port")


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferOptions:
    """How an engine takes part in the transfer of pages over TCP.

    `serves`: others may fetch what it computes. `fetches`: it looks for pages at others. It listens at `host` and `port`, and
    tells others to find it at `advertised`. Pages that it serves take up to `buffer_bytes` of the host's memory. Only `peers`
    may be asked for pages; without any those of this machine may. The secret is in `secret_file` or the variable `secret_env`,
    of which one is given.
    """

    engine_id: str
    serves: bool
    fetches: bool
    host: str
    port: int
    advertised: str
    buffer_bytes: int
    peers: tuple[Address, ...]
    shared_memory: bool
    secret_file: str | None
    secret_env: str | None

    def secret(self) -> bytes:
        """The shared secret.

        Raises:
            ConfigError: it cannot be read, or is too short.
        """
        if self.secret_file is not None:
            where = f"the file {self.secret_file!r} (secret_file)"
            try:
                value = Path(self.secret_file).read_bytes().strip()
            except OSError as error:
                raise ConfigError(
                    f"kv_transfer_config: the secret cannot be read from {where}: {error.strerror}"
                ) from None
        else:
            where = f"the environment variable {self.secret_env!r} (secret_env)"
            value = os.environ.get(self.secret_env or "", "").encode("utf-8", "surrogateescape").strip()
        if len(value) < LEAST_SECRET:
            raise ConfigError(
                f"kv_transfer_config: {where} must hold a secret of at least {LEAST_SECRET} bytes, and has {len(value)}; "
                "make one with `openssl rand -hex 32` and give it to all engines"
            )
        return value

    def may_ask(self, address: Address) -> bool:
        """Whether pages may be fetched from there, whoever named it."""
        if not self.peers:
            return is_loopback(address.host)
        return any(peer.host == address.host and peer.port in (None, address.port) for peer in self.peers)


def read_transfer_config(config: Mapping[str, Any]) -> TransferOptions | None:
    """What `kv_transfer_config` asks for between engines over TCP; None when it asks for nothing of the kind.

    Raises:
        ConfigError: a connector that is not built, an unknown key, or a value that is not allowed.
    """
    if not config:
        return None
    _check_keys(config)
    connector, role = config.get("kv_connector"), config.get("kv_role")
    if connector not in CONNECTORS:
        raise ConfigError(
            f"kv_transfer_config: kv_connector must be one of {', '.join(CONNECTORS)}, got {connector!r}. {TCP} moves pages "
            "between engines as NixlConnector does, with the same kv_transfer_params"
        )
    if role not in ROLES:
        raise ConfigError(f"kv_transfer_config: kv_role must be one of {', '.join(ROLES)}, got {role!r}")
    extra = _extra(config, connector)
    if connector == SHARED_STORAGE:
        return None
    host = _text(config, "kv_ip", "127.0.0.1")
    advertised = _text(extra, "advertise_host", host)
    if advertised in ("0.0.0.0", "::", ""):
        raise ConfigError(
            f"kv_transfer_config: kv_ip={host!r} is every address of this machine; advertise_host in "
            "kv_connector_extra_config must say at which others find it"
        )
    if config.get("kv_load_failure_policy", "recompute") != "recompute":
        raise ConfigError(
            "kv_transfer_config: kv_load_failure_policy must be recompute, "
            f"got {config['kv_load_failure_policy']!r}: pages that do not come are always computed"
        )
    names = [name for name in ("secret_file", "secret_env") if extra.get(name)]
    if len(names) != 1:
        raise ConfigError(
            "kv_transfer_config: kv_connector_extra_config needs a secret that all engines share: secret_file (a path) or "
            "secret_env (the name of an environment variable), and only one of them"
        )
    shared_memory = extra.get("shared_memory", True)
    if not isinstance(shared_memory, bool):
        raise ConfigError(f"kv_transfer_config: shared_memory must be true or false, got {shared_memory!r}")
    peers = extra.get("peers", [])
    if isinstance(peers, str) or not isinstance(peers, (list, tuple)):
        raise ConfigError(f"kv_transfer_config: peers must be a list of addresses, got {peers!r}")
    return TransferOptions(
        engine_id=_text(config, "engine_id", "") or uuid.uuid4().hex,
        serves=role != "kv_consumer",
        fetches=role != "kv_producer",
        host=host,
        port=_number(config, "kv_port", 14579, high=65535),
        advertised=advertised,
        buffer_bytes=_number(config, "kv_buffer_size", 10**9, high=2**63 - 1),
        peers=tuple(map(Address.parse, peers)),
        shared_memory=shared_memory,
        secret_file=_text(extra, "secret_file", "") or None,
        secret_env=_text(extra, "secret_env", "") or None,
    )


def is_loopback(host: str) -> bool:
    """Whether a name or address is this machine's own, without asking anybody."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _check_keys(config: Mapping[str, Any]) -> None:
    for key, value in config.items():
        if key not in (*KEYS, *NEUTRAL):
            raise ConfigError(f"kv_transfer_config has an unknown key {key!r}.{nearest(key, KEYS)}")
        if key in NEUTRAL and value not in NEUTRAL[key]:
            allowed = " or ".join(map(repr, NEUTRAL[key]))
            raise ConfigError(f"kv_transfer_config: {key} must be {allowed} or left out, got {value!r}")


def _extra(config: Mapping[str, Any], connector: str) -> Mapping[str, Any]:
    extra = config.get("kv_connector_extra_config") or {}
    if not isinstance(extra, Mapping):
        raise ConfigError(f"kv_transfer_config: kv_connector_extra_config must be an object, got {extra!r}")
    for key in extra:
        if key not in EXTRA_KEYS[connector]:
            raise ConfigError(
                f"kv_connector_extra_config of {connector} has an unknown key {key!r}; it may have "
                f"{', '.join(EXTRA_KEYS[connector])}"
            )
    return extra


def _text(config: Mapping[str, Any], key: str, default: str) -> str:
    value = config.get(key)
    if value is None:
        return default
    if not isinstance(value, str) or not value:
        raise ConfigError(f"kv_transfer_config: {key} must be a text, got {value!r}")
    return value


def _number(config: Mapping[str, Any], key: str, default: int, *, high: int) -> int:
    value = config.get(key)
    if value is None:
        return default
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # vLLM's is a float: 1e9
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= high:
        raise ConfigError(f"kv_transfer_config: {key} must be a whole number from 1 to {high}, got {value!r}")
    return value
