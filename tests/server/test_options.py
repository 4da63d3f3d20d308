"""Options of the server: read, checked, refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jaxengine.errors import ConfigError
from jaxengine.server.options import ServerConfig, read_file, read_options


def test_defaults_are_safe() -> None:
    config = ServerConfig.from_options()
    assert config.network.host == "127.0.0.1"
    assert config.network.allowed_origins == ()
    assert not config.api.trust_request_chat_template
    limits = config.limits
    assert min(limits.max_json_depth, limits.max_num_queued_reqs, limits.request_timeout) > 0


def test_the_environment_may_say_where_to_listen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXENGINE_HOST", "0.0.0.0")
    assert read_options({})[1].network.host == "0.0.0.0"
    assert read_options({"host": "::1"})[1].network.host == "::1"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prot": 1}, "unknown option 'prot'. Did you mean 'port'?"),
        ({"port": 70000}, "at most 65535"),
        ({"port": -1}, "at least 0"),
        ({"ssl_keyfile": "k"}, "both ssl_certfile and ssl_keyfile"),
        ({"ssl_cert_reqs": 3}, "0, 1 or 2"),
        ({"uvicorn_log_level": "loud"}, "must be one of critical"),
        ({"request_timeout": -1}, "seconds, 0 or more"),
        ({"request_timeout": "soon"}, "seconds, 0 or more"),
        ({"enable_request_id_headers": 1}, "True or False"),
        ({"lora_modules": ("a",)}, "lora_modules must be name=path"),
        ({"lora_modules": ({"name": "a"},)}, "lora_modules must be name=path"),
        ({"lora_modules": ('{"name": "a", "path": 1}',)}, "lora_modules must be name=path"),
        ({"lora_modules": ("a=b", "a=c")}, "two adapters of the name 'a'"),
    ],
    ids=str,
)
def test_wrong_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        ServerConfig.from_options(**options)
    assert message in str(refused.value)


def test_api_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAXENGINE_API_KEY", raising=False)
    monkeypatch.setenv("VLLM_API_KEY", "env")
    assert ServerConfig.from_options().api_keys() == ("env",)
    assert ServerConfig.from_options(api_key=("a", "b")).api_keys() == ("a", "b")
    with pytest.raises(ConfigError, match="must not be empty"):
        ServerConfig.from_options(api_key=("a", "")).api_keys()
    monkeypatch.delenv("VLLM_API_KEY")
    assert ServerConfig.from_options().api_keys() == ()


def test_a_file_of_options(tmp_path: Path) -> None:
    file = tmp_path / "options.yaml"
    file.write_text("model: some/dir\nblock-size: 32\nport: 9000\nserved-model-name: [a, b]\nswap-space: 4\n")
    options = read_file(str(file))
    assert options == {
        "model": "some/dir",
        "page_size": 32,
        "port": 9000,
        "served_model_name": ("a", "b"),
        "swap_space": 4,
    }
    for content, message in [("- a\n", "must map option names"), ("a: [", "options.yaml"), ("", "must map")]:
        file.write_text(content)
        with pytest.raises(ConfigError, match=message):
            read_file(str(file))
    with pytest.raises(ConfigError, match=r"nothing\.yaml"):
        read_file(str(tmp_path / "nothing.yaml"))


def test_options_are_told_apart() -> None:
    engine, server = read_options(
        {"model": "m", "port": 9, "disable_log_stats": True, "rope_theta": "1e4", "kv_cache_dtype": "auto"}
    )
    assert (engine.model.model, engine.model.hf_overrides) == ("m", {"rope_theta": 1e4})
    assert (server.network.port, server.api.log_stats_interval) == (9, 0)
    with pytest.raises(ConfigError, match=r"unknown option 'prot'\. Did you mean 'port'\?"):
        read_options({"prot": 1})
    with pytest.raises(ConfigError, match="means log_stats_interval=0, and log_stats_interval=5 is given too"):
        read_options({"disable_log_stats": True, "log_stats_interval": 5})


@pytest.mark.parametrize(
    ("options", "may"),
    [
        ({}, True),
        ({"model": "m"}, False),
        ({"model": "m", "enable_auto_tool_choice": True}, True),
        ({"enable_auto_tool_choice": False}, False),
        ({"tool_call_parser": "none"}, False),
        ({"chat_template": "{{ messages }}"}, False),
        ({"chat_template": "{{ messages }}", "tool_call_parser": "hermes"}, True),
        ({"skip_tokenizer_init": True}, False),
    ],
)
def test_the_embedded_model_may_call_tools_unless_told_otherwise(options: dict[str, Any], may: bool) -> None:
    assert read_options(options)[1].api.enable_auto_tool_choice is may
