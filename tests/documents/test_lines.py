"""What vLLM's documents show is read as it is written there: command lines, Python, flags."""

from __future__ import annotations

import argparse
import inspect
import re
import shlex
import sys
import types
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

import jaxengine
from jaxengine import AsyncLLM, cli
from jaxengine.config import EngineConfig, option_names
from jaxengine.errors import ConfigError
from jaxengine.flags import as_written, given_options
from jaxengine.server.options import ServerConfig, read_options
from jaxengine.vllm_names import NAMES, read_environment
from tests.documents.lines import COMMANDS, ELSEWHERE, EXAMPLES, Shown

ENTRIES = {
    ("vllm",): (),
    ("python", "-m", "vllm.entrypoints.openai.api_server"): ("serve",),
}
"""How a command of vLLM's begins, and ours then."""
SAMPLES = {
    "allowed-headers": """'["*"]'""",
    "allowed-methods": """'["*"]'""",
    "allowed-origins": """'["*"]'""",
    "enable-auto-tool-choice": "--tool-call-parser hermes",
    "hf-overrides": """'{"rope_theta": 1e4}'""",
    "ngram-prompt-lookup-max": "4 --speculative-model [ngram] --num-speculative-tokens 4",
    "ngram-prompt-lookup-min": "2 --speculative-model [ngram] --num-speculative-tokens 4",
    "num-gpu-blocks-override": "24",
    "num-speculative-tokens": "4 --speculative-model [ngram]",
    "override-generation-config": """'{"temperature": 0.5}'""",
    "quantization": "None",
    "speculative-model": "[ngram] --num-speculative-tokens 4",
    "ssl-certfile": "a.pem --ssl-keyfile a.pem",
    "ssl-keyfile": "a.pem --ssl-certfile a.pem",
}
"""What flags are given where neither the first that is allowed nor 1 would do."""


def as_ours(line: str) -> tuple[dict[str, str], list[str]]:
    """The variables and the words of a command line, for `jaxengine`."""
    words = shlex.split(line.replace("MODEL", "embedded"))
    variables = {}
    while "=" in words[0] and not words[0].startswith("-"):
        name, _, value = words.pop(0).partition("=")
        variables[name] = value
    for entry, ours in ENTRIES.items():
        if tuple(words[: len(entry)]) == entry:
            return variables, [*ours, *words[len(entry) :]]
    raise AssertionError(f"{line} does not begin as a command of vLLM's does")


@lru_cache
def parser() -> argparse.ArgumentParser:
    """The command line, made once: that takes as long as all the rest here."""
    return cli._parser()


def refusal(line: str) -> str:
    """Why a command line is not taken, as far as that is seen without a model or a server; empty when it is."""
    variables, words = as_ours(line)
    try:
        namespace = parser().parse_args(as_written(words))
        if namespace.command == "serve":
            given = given_options(namespace, EngineConfig, ServerConfig)
            read_options({**read_environment(variables), **given})
    except ConfigError as error:
        return str(error)
    except SystemExit:
        return "it cannot be read"
    return ""


@pytest.mark.parametrize("shown", COMMANDS, ids=lambda shown: shown.text)
def test_a_command_line_is_taken(shown: Shown) -> None:
    message = refusal(shown.text)
    assert not message or (shown.later and message.startswith(shown.later))


class Understood:
    """Stands for the engine: takes what it takes, and answers nothing."""

    real: type = jaxengine.LLM

    def __init__(self, *model: str, **options: Any) -> None:
        EngineConfig.from_options(**inspect.signature(self.real).bind(*model, **options).arguments.get("options", {}))

    @classmethod
    def from_engine_args(cls, *given: Any, **named: Any) -> Understood:
        inspect.signature(cls.real.from_engine_args).bind(*given, **named)  # type: ignore[attr-defined]
        return cls()

    def get_default_sampling_params(self) -> jaxengine.SamplingParams:
        return jaxengine.SamplingParams()

    def embed(self, *given: Any, **named: Any) -> list[Any]:
        inspect.signature(self.real.embed).bind(self, *given, **named)  # type: ignore[attr-defined]
        return [types.SimpleNamespace(outputs=types.SimpleNamespace(embedding=[]))]

    def generate(self, *given: Any, **named: Any) -> list[Any]:
        inspect.signature(self.real.generate).bind(self, *given, **named)  # type: ignore[attr-defined]
        return []


class AsyncUnderstood(Understood):
    """The same for the event loop's."""

    real = AsyncLLM

    async def generate(self, *given: Any, **named: Any) -> Any:  # type: ignore[override]
        inspect.signature(self.real.generate).bind(self, *given, **named)  # type: ignore[attr-defined]
        for nothing in ():
            yield nothing


@pytest.mark.parametrize("shown", EXAMPLES, ids=lambda shown: shown.row)
def test_an_example_is_understood(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {name: getattr(jaxengine, name) for name in ("SamplingParams", "AsyncEngineArgs")}
    stand_in = types.SimpleNamespace(**names, LLM=Understood, AsyncLLMEngine=AsyncUnderstood)
    monkeypatch.setitem(sys.modules, "vllm", stand_in)
    text = shown.text.replace("MODEL", "embedded")
    try:
        exec(text, {})
    except ConfigError as error:
        if not shown.later or not str(error).startswith(shown.later):
            raise


@pytest.fixture(scope="module")
def table(shared: Path) -> str:
    """The project's table of what the documents show."""
    return shared.parent.joinpath("reference", "documents.md").read_text()


def test_no_row_that_shows_a_command_or_code_is_left_out(table: str) -> None:
    rows = re.findall(r"^\| (.*?) \| (?:[A-Z]+ ?)+", table[table.index("## Document 0") :], re.MULTILINE)
    shows = re.compile(
        r"vllm serve|LLM\(|LLMEngine|SamplingParams\(|curl |benchmark_|^VLLM_|^PT_HPU|^server example|^(TP|AWQ|GPTQ|FP8) .*server"
    )
    known = [shown.row for shown in (*COMMANDS, *EXAMPLES)] + list(ELSEWHERE)
    shown = [row for row in rows if shows.search(row)]
    assert len(shown) > 25
    assert not [row for row in shown if not any(row.startswith(begin) for begin in known)]
    assert not [begin for begin in known if not any(row.startswith(begin) for row in rows)]


def value_of(flag: str) -> str:
    """Something to give a flag: what it may be, or what asks for what is done anyway. A refused switch is turned off."""
    name = flag.replace("-", "_")
    own = {
        name: spec
        for names in (option_names(EngineConfig), option_names(ServerConfig))
        for name, (_, spec) in names.items()
    }
    if flag in SAMPLES:
        return f"--{flag} {SAMPLES[flag]}"
    if (spec := own.get(name.removeprefix("no_"))) is not None:
        return f"--{flag}" if isinstance(spec.default, bool) else f"--{flag} {(spec.metadata['choices'] or ('1',))[0]}"
    known = NAMES[name.removeprefix("no_")]
    if known.is_flag:
        return f"--{flag}" if known.fate != "refused" or True in known.neutral else f"--no-{flag}"
    return f"--{flag}" if known.is_list else f"--{flag} {shlex.quote(str((*known.neutral, '1')[0]))}"


def test_every_flag_of_the_usage_blocks_is_taken(table: str) -> None:
    flags = re.findall(r"^\| `--([a-z0-9-]+)` \|", table, re.MULTILINE)
    assert len(flags) > 130
    lines = {flag: f"vllm serve {value_of(flag)}" for flag in flags}
    assert {flag: message for flag, line in lines.items() if (message := refusal(line))} == {}
