"""What an engine takes before it loads anything, so that its pages can be found by others."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any

import pytest

from jaxengine.device.tiers.peers import server
from jaxengine.errors import ConfigError
from jaxengine.options.cache import CacheConfig
from jaxengine.options.transfer import Address
from jaxengine.startup.transfer import open_transfer, plan_transfer

SECRET = "a secret of any length, longer than the keys that hashes take; " * 3


def _cache(role: str, port: int, **more: Any) -> CacheConfig:
    extra: Mapping[str, Any] = {"secret_env": "PAGES_SECRET", "advertise_host": "prefill.local"}
    config = {"kv_connector": "TcpConnector", "kv_role": role, "kv_port": port, "kv_connector_extra_config": extra}
    return CacheConfig(kv_transfer_config={**config, **more})


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setenv("PAGES_SECRET", SECRET)
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def test_nothing_is_taken_where_nothing_is_asked_for() -> None:
    assert plan_transfer(CacheConfig()) is None


@pytest.mark.parametrize(
    ("role", "sources", "described"),
    [
        ("kv_producer", ["host"], "served at prefill.local:{port}"),
        ("kv_consumer", ["p2p"], "fetched from other engines"),
        ("kv_both", ["host", "p2p"], "served at prefill.local:{port} and fetched from other engines"),
    ],
)
def test_roles(role: str, sources: list[str], described: str, port: int) -> None:
    plan = plan_transfer(_cache(role, port, kv_buffer_size=1 << 20))
    assert plan is not None
    assert len(plan.secret) == 32
    transfer = open_transfer(plan, bytes(32), block_bytes=1000)
    assert [store.source for store in transfer.stores] == sources
    assert transfer.describe() == described.format(port=port)
    assert transfer.facts.address == Address("prefill.local", port)
    assert (transfer.facts.serves, transfer.facts.fetches) == ("host" in sources, "p2p" in sources)
    assert (transfer.know_peer is None) == ("p2p" not in sources)
    for store in transfer.stores:
        store.close()


def test_a_mistake_is_told_before_anything_is_loaded(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "BIND_S", 0.0)
    with (
        socket.create_server(("127.0.0.1", port)),
        pytest.raises(ConfigError, match="Choose another kv_ip or kv_port"),
    ):
        plan_transfer(_cache("kv_producer", port))
    monkeypatch.delenv("PAGES_SECRET")
    with pytest.raises(ConfigError, match="must hold a secret"):
        plan_transfer(_cache("kv_consumer", port))
