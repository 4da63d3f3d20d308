"""What vLLM's documents show is read as it is written there: command lines, Python, flags."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

from jaxengine.errors import ConfigError
from jaxengine.options.config import EngineConfig
from jaxengine.options.names import known_names
from jaxengine.options.option import option_names
from jaxengine.server.options import ServerConfig
from tests.documents.lines import COMMANDS, ELSEWHERE, EXAMPLES, Shown
from tests.documents.understanding import refusal, stand_in

SAMPLES = {
    "allowed-headers": """'["*"]'""",
    "allowed-methods": """'["*"]'""",
    "allowed-origins": """'["*"]'""",
    "collect-detailed-traces": "model",
    "enable-auto-tool-choice": "--tool-call-parser hermes",
    "hf-overrides": """'{"rope_theta": 1e4}'""",
    "limit-mm-per-prompt": """'{"image": 1}'""",
    "lora-modules": "sql=/adapters/sql --enable-lora",
    "kv-transfer-config": (
        """'{"kv_connector": "SharedStorageConnector", "kv_role": "kv_both", """
        """"kv_connector_extra_config": {"shared_storage_path": "/pages"}}'"""
    ),
    "mm-processor-kwargs": """'{"max_pixels": 1003520}'""",
    "ngram-prompt-lookup-max": "4 --speculative-model [ngram] --num-speculative-tokens 4",
    "ngram-prompt-lookup-min": "2 --speculative-model [ngram] --num-speculative-tokens 4",
    "num-gpu-blocks-override": "24",
    "num-speculative-tokens": "4 --speculative-model [ngram]",
    "override-generation-config": """'{"temperature": 0.5}'""",
    "override-pooler-config": """'{"normalize": true}'""",
    "quantization": "None",
    "speculative-draft-tensor-parallel-size": "1 --speculative-model [ngram] --num-speculative-tokens 4",
    "speculative-model": "[ngram] --num-speculative-tokens 4",
    "ssl-certfile": "a.pem --ssl-keyfile a.pem",
    "ssl-keyfile": "a.pem --ssl-certfile a.pem",
}
"""What flags are given where neither the first that is allowed nor 1 would do."""


@pytest.mark.parametrize("shown", COMMANDS, ids=lambda shown: shown.text)
def test_a_command_line_is_taken(shown: Shown) -> None:
    message = refusal(shown.text)
    assert not message or (shown.later and message.startswith(shown.later))


@pytest.mark.parametrize("shown", EXAMPLES, ids=lambda shown: shown.row)
def test_an_example_is_understood(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", stand_in())
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
    known = known_names()[name.removeprefix("no_")]
    if known.is_flag:
        return f"--{flag}" if known.fate != "refused" or True in known.neutral else f"--no-{flag}"
    return f"--{flag}" if known.is_list else f"--{flag} {shlex.quote(str((*known.neutral, '1')[0]))}"


def test_every_flag_of_the_usage_blocks_is_taken(table: str) -> None:
    flags = re.findall(r"^\| `--([a-z0-9-]+)` \|", table, re.MULTILINE)
    assert len(flags) > 130
    lines = {flag: f"vllm serve {value_of(flag)}" for flag in flags}
    assert {flag: message for flag, line in lines.items() if (message := refusal(line))} == {}
