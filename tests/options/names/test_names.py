"""vLLM's names: each has a fate, and none is taken for another."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from jaxengine.errors import ConfigError
from jaxengine.options.config import EngineConfig
from jaxengine.options.names import NAMES, translate
from jaxengine.options.option import option_names
from jaxengine.server.options import ServerConfig, read_options

OWN = option_names(EngineConfig) | option_names(ServerConfig)


def test_no_name_stands_beside_an_option_of_the_same_name() -> None:
    assert not NAMES.keys() & option_names(EngineConfig).keys()


def test_every_flag_of_the_documents_is_known(shared: Path) -> None:
    table = shared.parent.joinpath("reference", "documents.md").read_text()
    flags = re.findall(r"^\| `--([a-z0-9-]+)` \|", table, re.MULTILINE)
    assert len(flags) > 130
    names = {flag.replace("-", "_").removeprefix("no_") for flag in flags}
    assert names <= OWN.keys() | NAMES.keys()


@pytest.mark.parametrize("name", NAMES)
def test_what_is_done_anyway_is_taken_in_silence(name: str, caplog: pytest.LogCaptureFixture) -> None:
    assert EngineConfig.from_options(**{name: None}) == EngineConfig()
    for value in NAMES[name].neutral:
        assert EngineConfig.from_options(**{name: value}) == EngineConfig()
        assert EngineConfig.from_options(**{name: str(value)}) == EngineConfig()
    assert not caplog.records


@pytest.mark.parametrize("name", [name for name, known in NAMES.items() if known.fate == "refused"])
def test_what_is_not_built_is_refused_with_what_there_is_instead(name: str) -> None:
    known = NAMES[name]
    if known.is_flag and len(known.neutral) == 2:
        return  # there is no third value
    value = not known.neutral[0] if known.is_flag else "something"
    with pytest.raises(ConfigError, match=re.escape(f"{name}={value!r} is refused: {known.says}")):
        EngineConfig.from_options(**{name: value})


@pytest.mark.parametrize("name", [name for name, known in NAMES.items() if known.fate == "no effect"])
def test_what_has_nothing_to_act_on_is_noted(name: str, caplog: pytest.LogCaptureFixture) -> None:
    assert EngineConfig.from_options(**{name: "something"}) == EngineConfig()
    assert caplog.messages == [f"{name}='something' has no effect: {NAMES[name].says}"]


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ({"rope_scaling": {"rope_type": "yarn"}}, {"hf_overrides": {"rope_scaling": {"rope_type": "yarn"}}}),
        (
            {"rope_theta": "1e4", "hf_overrides": '{"rope_scaling": {}}'},
            {"hf_overrides": {"rope_theta": 1e4, "rope_scaling": {}}},
        ),
        (
            {"speculative_model": "[ngram]", "num_speculative_tokens": "5", "ngram_prompt_lookup_max": 4},
            {"speculative_config": {"model": "[ngram]", "num_speculative_tokens": 5, "prompt_lookup_max": 4}},
        ),
        (
            {"spec_method": "ngram", "spec_tokens": 3},
            {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}},
        ),
        ({"disable_log_stats": True}, {"log_stats_interval": 0}),
        ({"disable_log_stats": False}, {}),
        ({"disable_uvicorn_access_log": True}, {"access_log": False}),
        ({"jit_monitor_mode": "error"}, {"compile_guard": "error"}),
        ({"structured_outputs_config": {"backend": "xgrammar"}}, {}),
        ({"structured_outputs_config": '{"reasoning_parser": "qwen3"}'}, {"reasoning_parser": "qwen3"}),
        ({"pipeline_parallel_size": "1", "swap_space": 4.0, "enable_chunked_prefill": "True"}, {}),
    ],
)
def test_what_stands_for_options_becomes_them(given: dict[str, Any], meant: dict[str, Any]) -> None:
    assert translate(given, OWN) == meant
    read_options(given)


def test_an_engine_alone_takes_what_only_a_server_shows(caplog: pytest.LogCaptureFixture) -> None:
    assert EngineConfig.from_options(disable_log_stats=True) == EngineConfig()
    assert not caplog.records
    assert EngineConfig.from_options(served_model_name="m") == EngineConfig()
    assert "It is an option of the server" in caplog.text


def test_a_key_of_structured_outputs_that_would_change_answers_is_refused() -> None:
    with pytest.raises(ConfigError, match="structured_outputs_config: disable_any_whitespace is refused"):
        EngineConfig.from_options(structured_outputs_config={"disable_any_whitespace": True})
