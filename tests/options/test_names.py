"""vLLM's names: each has a fate, and none is taken for another."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jaxengine.errors import ConfigError
from jaxengine.options import names
from jaxengine.options.config import EngineConfig
from jaxengine.options.names import known_names, read_environment, translate
from jaxengine.options.option import option_names
from jaxengine.server.options import ServerConfig, read_options

NAMES = known_names()
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
        ({"num_scheduler_steps": "1", "swap_space": 0, "enable_chunked_prefill": "True"}, {}),
        ({"swap_space": "4"}, {"kv_offloading_size": 4}),
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


def test_variables_become_options_or_one_line_each(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    names._notice.cache_clear()
    caplog.set_level(logging.WARNING)
    environ = {
        "VLLM_SKIP_WARMUP": "true",
        "VLLM_XLA_CACHE_PATH": "/cache",
        "VLLM_LOG_STATS_INTERVAL": "5",
        "VLLM_PROMPT_BS_BUCKET_MIN": "1",
        "VLLM_NEVER_HEARD_OF": "1",
        "PT_HPU_LAZY_MODE": "1",
        "VLLM_API_KEY": "secret",
        "HOME": "/root",
    }
    meant = {"warmup": "none", "xla_cache_path": "/cache", "log_stats_interval": 5.0}
    assert read_environment(environ) == meant
    assert read_environment(environ) == meant
    assert [message.split()[2] for message in caplog.messages] == [
        "PT_HPU_LAZY_MODE",
        "VLLM_NEVER_HEARD_OF",
        "VLLM_PROMPT_BS_BUCKET_MIN",
    ]
    assert "prefill_batch_range=MIN,STEP,MAX" in caplog.text
    assert "secret" not in caplog.text
    with pytest.raises(ConfigError, match="VLLM_LOG_STATS_INTERVAL must be a number, got 'soon'"):
        read_environment({"VLLM_LOG_STATS_INTERVAL": "soon"})


def test_what_variables_stand_for_are_options() -> None:
    for name, variable in known_names("variables").items():
        assert variable.options(name, "1").keys() <= OWN.keys()


def test_a_word_that_is_false_leaves_what_a_variable_switches() -> None:
    for text in ("0", "false", "no", "off", ""):
        assert read_environment({"VLLM_SKIP_WARMUP": text}) == {}


def test_every_key_of_a_mapping_is_an_option_nothing_to_choose_or_refused() -> None:
    traced = {"profiler": "torch", "torch_profiler_dir": "x"}
    assert translate({"profiler_config": traced}, OWN) == {"profile": "x"}
    with pytest.raises(
        ConfigError, match="profiler_config: delay_iterations is refused; it may have torch_profiler_dir"
    ):
        translate({"profiler_config": {**traced, "delay_iterations": 3}}, OWN)


def test_a_line_without_names_of_vllms_does_not_read_their_file() -> None:
    parse = "c._parser().parse_known_args(['serve', 'm', '--port', '1'])"
    code = f"import sys, jaxengine.cli as c; {parse}; print('tomllib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize("section", ["options", "variables"])
def test_a_group_says_one_thing_and_a_name_is_in_one_group(section: str) -> None:
    found: list[str] = []
    for group in names._file()[section]:
        fates = names.FATES.keys() & group.keys()
        assert len(fates) == 1, group
        assert group.keys() - fates <= {"taken", "names", "short", "means", "keys"}
        own = [*group.get("names", ()), *group.get("taken", ()), *group.get("means", ()), *group.get("keys", ())]
        assert set(group.get("short", ())) <= set(own)
        assert ("read_as" in fates) == ("means" in group or "keys" in group)
        found += dict.fromkeys(own)
    assert len(found) == len(set(found)) == len(known_names(section))
