"""vLLM's environment variables: options, or a line each in the log."""

from __future__ import annotations

import logging

import pytest

from jaxengine.errors import ConfigError
from jaxengine.options.config import EngineConfig
from jaxengine.options.names import VARIABLES, read_environment, variables
from jaxengine.options.option import option_names
from jaxengine.server.options import ServerConfig

OWN = option_names(EngineConfig) | option_names(ServerConfig)


def test_variables_become_options_or_one_line_each(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    variables._notice.cache_clear()
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
    with pytest.raises(ConfigError, match="VLLM_LOG_STATS_INTERVAL cannot be read: 'soon'"):
        read_environment({"VLLM_LOG_STATS_INTERVAL": "soon"})


def test_what_variables_stand_for_are_options() -> None:
    for variable in VARIABLES.values():
        if variable.becomes is not None:
            assert variable.becomes("1").keys() <= OWN.keys()
