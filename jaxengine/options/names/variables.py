"""vLLM's environment variables: which stand for options, and what is said of the others."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from jaxengine.errors import ConfigError
from jaxengine.options.names.device_names import HOSTS
from jaxengine.options.names.name import same_as

logger = logging.getLogger("jaxengine")


@dataclass(frozen=True, slots=True)
class Variable:
    """What becomes of an environment variable of vLLM's: options, or a line in the log that `says` why none."""

    says: str
    becomes: Callable[[str], Mapping[str, Any]] | None = None


def _if_true(option: str, setting: Any) -> Callable[[str], Mapping[str, Any]]:
    return lambda text: {option: setting} if text.strip().lower() in ("1", "true", "yes", "on") else {}


_RANGES = {
    "PROMPT_BS": "bucket_planner=linear with prefill_batch_range=MIN,STEP,MAX",
    "PROMPT_SEQ": "bucket_planner=linear with prefill_seq_range=MIN,STEP,MAX",
    "DECODE_BS": "bucket_planner=linear with decode_batch_range=MIN,STEP,MAX",
}
_HOST_GRAPHS = "Memory and order of programs follow from their shapes: see bucket_planner."

VARIABLES: Mapping[str, Variable] = {
    "VLLM_API_KEY": Variable("The same as api_key.", lambda _: {}),
    "VLLM_SKIP_WARMUP": Variable("The same as warmup=none.", _if_true("warmup", "none")),
    "VLLM_XLA_CACHE_PATH": Variable("The same as xla_cache_path.", same_as("xla_cache_path")),
    "VLLM_ATTENTION_BACKEND": Variable("The same as attention_backend.", same_as("attention_backend")),
    "VLLM_LOG_STATS_INTERVAL": Variable(
        "The same as log_stats_interval.", lambda text: {"log_stats_interval": float(text)}
    ),
    "VLLM_XLA_CHECK_RECOMPILATION": Variable("The same as compile_guard=error.", _if_true("compile_guard", "error")),
    **{
        f"VLLM_{axis}_BUCKET_{end}": Variable(f"Use {instead}.")
        for axis, instead in _RANGES.items()
        for end in ("MIN", "STEP", "MAX")
    },
    **{
        f"VLLM_DECODE_BLOCK_BUCKET_{end}": Variable("The context of a step is data here, not a shape.")
        for end in ("MIN", "STEP", "MAX")
    },
    "VLLM_GRAPH_RESERVED_MEM": Variable(_HOST_GRAPHS),
    "VLLM_GRAPH_PROMPT_RATIO": Variable(_HOST_GRAPHS),
    "VLLM_GRAPH_PROMPT_STRATEGY": Variable(_HOST_GRAPHS),
    "VLLM_GRAPH_DECODE_STRATEGY": Variable(_HOST_GRAPHS),
    "VLLM_PROFILER_ENABLED": Variable("Use profile=DIR."),
    "VLLM_TORCH_PROFILER_DIR": Variable("The same as profile.", same_as("profile")),
    "VLLM_HPU_LOG_STEP_GRAPH_COMPILATION": Variable(
        "A program that compiles during a step is always named in the log."
    ),
    "VLLM_HPU_LOG_STEP_GRAPH_COMPILATION_ALL": Variable("See compile_guard."),
    "VLLM_TARGET_DEVICE": Variable("Use device."),
    "VLLM_WORKER_MULTIPROC_METHOD": Variable("The engine is one process."),
    "VLLM_ENABLE_V1_MULTIPROCESSING": Variable("The engine is one process."),
    "VLLM_USE_V1": Variable("There is one engine."),
    "VLLM_HOST_IP": Variable(HOSTS),
    "VLLM_LOGGING_LEVEL": Variable("Use Python's logging: the logger is `jaxengine`."),
}


def read_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    """The options that vLLM's environment variables stand for. Those that stand for none are named in the log, once a process."""
    options: dict[str, Any] = {}
    for name in sorted(environ):
        if not name.startswith(("VLLM_", "PT_HPU_")):
            continue
        variable = VARIABLES.get(name, Variable("It means nothing here."))
        if variable.becomes is None:
            _notice(f"the variable {name} has no effect: {variable.says}")
            continue
        try:
            options.update(variable.becomes(environ[name]))
        except ValueError:
            raise ConfigError(f"the variable {name} cannot be read: {environ[name]!r}. {variable.says}") from None
    return options


@lru_cache(maxsize=256)
def _notice(text: str) -> None:
    logger.warning("%s", text)
