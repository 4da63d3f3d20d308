"""vLLM's kv_transfer_config: what it means, and what is said of the rest of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jaxengine.errors import ConfigError
from jaxengine.options.transfer import Address, is_loopback, read_transfer_config

EXTRA = {"secret_env": "PAGES_SECRET"}
CONFIG = {"kv_connector": "TcpConnector", "kv_role": "kv_both", "kv_connector_extra_config": EXTRA}


def test_nothing_is_asked_for() -> None:
    assert read_transfer_config({}) is None


def test_what_is_asked_for() -> None:
    options = read_transfer_config(CONFIG)
    assert options is not None
    assert (options.serves, options.fetches) == (True, True)
    assert (options.host, options.port, options.advertised) == ("127.0.0.1", 14579, "127.0.0.1")
    assert options.buffer_bytes == 10**9
    assert options.shared_memory
    assert options.engine_id
    other = read_transfer_config(CONFIG)
    assert other is not None
    assert other.engine_id != options.engine_id


def test_all_of_it() -> None:
    options = read_transfer_config(
        {
            "kv_connector": "TcpConnector",
            "kv_role": "kv_producer",
            "engine_id": "one",
            "kv_ip": "0.0.0.0",
            "kv_port": 9000,
            "kv_buffer_size": 5e6,
            "kv_buffer_device": "cpu",
            "kv_rank": 0,
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {
                "secret_file": "/run/secret",
                "advertise_host": "prefill.local",
                "peers": ["prefill.local", "10.0.0.1:9000", "[fe80::1]:9"],
                "shared_memory": False,
            },
        }
    )
    assert options is not None
    assert (options.serves, options.fetches) == (True, False)
    assert (options.engine_id, options.host, options.port, options.advertised) == (
        "one",
        "0.0.0.0",
        9000,
        "prefill.local",
    )
    assert (options.buffer_bytes, options.shared_memory, options.secret_file) == (5_000_000, False, "/run/secret")
    assert options.peers == (Address("prefill.local", None), Address("10.0.0.1", 9000), Address("fe80::1", 9))
    assert options.may_ask(Address("prefill.local", 1))
    assert options.may_ask(Address("10.0.0.1", 9000))
    assert not options.may_ask(Address("10.0.0.1", 9001))
    assert not options.may_ask(Address("127.0.0.1", 9000))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kv_connector": "NixlConnector"}, "must be one of TcpConnector, SharedStorageConnector, got 'NixlConnector'"),
        ({"kv_connector": None}, "got None"),
        ({"kv_role": "kv_prefill"}, "must be one of kv_producer, kv_consumer, kv_both, got 'kv_prefill'"),
        ({"kv_roll": "kv_both"}, "unknown key 'kv_roll'. Did you mean 'kv_role'"),
        ({"kv_port": 0}, "kv_port must be a whole number from 1 to 65535, got 0"),
        ({"kv_port": True}, "kv_port must be a whole number"),
        ({"kv_buffer_size": 0.5}, "kv_buffer_size must be a whole number"),
        ({"kv_ip": 7}, "kv_ip must be a text, got 7"),
        ({"kv_ip": "0.0.0.0"}, "advertise_host in"),
        ({"kv_parallel_size": 8}, "kv_parallel_size must be 1 or 2 or left out, got 8"),
        ({"kv_connector_module_path": "evil.module"}, "kv_connector_module_path must be None or left out"),
        ({"kv_load_failure_policy": "fail"}, "must be recompute, got 'fail'"),
        ({"kv_connector_extra_config": {}}, "needs a secret"),
        ({"kv_connector_extra_config": {**EXTRA, "secret_file": "x"}}, "only one of them"),
        ({"kv_connector_extra_config": {**EXTRA, "secret": "x"}}, "unknown key 'secret'; it may have secret_file"),
        ({"kv_connector_extra_config": {**EXTRA, "peers": "host:1"}}, "peers must be a list"),
        ({"kv_connector_extra_config": {**EXTRA, "peers": ["host:99999"]}}, "'host:99999' is not an address"),
        ({"kv_connector_extra_config": {**EXTRA, "peers": [7]}}, "7 is not an address"),
        ({"kv_connector_extra_config": {**EXTRA, "shared_memory": "no"}}, "must be true or false, got 'no'"),
        ({"kv_connector_extra_config": "x"}, "must be an object, got 'x'"),
    ],
)
def test_what_is_refused_and_why(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("[", r"\[")):
        read_transfer_config({**CONFIG, **change})


def test_the_secret_is_read_from_a_file_or_a_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = read_transfer_config(CONFIG)
    assert options is not None
    monkeypatch.delenv("PAGES_SECRET", raising=False)
    with pytest.raises(ConfigError, match=r"'PAGES_SECRET' \(secret_env\) must hold a secret of at least 16 bytes"):
        options.secret()
    monkeypatch.setenv("PAGES_SECRET", "too short")
    with pytest.raises(ConfigError, match="and has 9") as error:
        options.secret()
    assert "too short" not in str(error.value)
    monkeypatch.setenv("PAGES_SECRET", "long enough for a secret\n")
    assert options.secret() == b"long enough for a secret"
    file = tmp_path / "secret"
    from_file = read_transfer_config({**CONFIG, "kv_connector_extra_config": {"secret_file": str(file)}})
    assert from_file is not None
    with pytest.raises(ConfigError, match="No such file"):
        from_file.secret()
    file.write_text("long enough for a secret\n")
    assert from_file.secret() == options.secret()
    assert "long enough" not in repr(options)


def test_which_addresses_are_of_this_machine() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.8.8.8", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "10.0.0.1", "localhost.evil", "2130706433", "169.254.169.254", "")))
