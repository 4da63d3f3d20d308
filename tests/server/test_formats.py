"""Which formats a server reads: those that are asked for, those that the checkpoint tells, or none, and what it says of them."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

import pytest

from jaxengine.errors import ConfigError
from jaxengine.server.formats import Formats
from jaxengine.server.options import ServerConfig
from jaxengine.text.tokenizer import Tokenizer
from tests.front.parsers.test_signs import QWEN3 as MARKS
from tests.fronts import TOKENIZER, make_engine
from tests.server.rig import live
from tests.server.scripted import TOOLS, ScriptedRunner, calls, message

QWEN3 = "{% if false %}" + MARKS + "{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}"
CALL = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'


def tokenizer(template: str | dict[str, str] | None) -> Tokenizer:
    settings = dataclasses.replace(TOKENIZER.settings, chat_templates=template, model_type="qwen3")
    return Tokenizer(TOKENIZER.backend, settings)


def choose(template: str | dict[str, str] | None, **options: Any) -> Formats:
    return Formats.choose(ServerConfig.from_options(**options).api, tokenizer(template))


@pytest.mark.parametrize(
    ("template", "options", "tools", "reasoning"),
    [
        (QWEN3, {}, "hermes", "qwen3"),
        (QWEN3, {"tool_call_parser": "none", "reasoning_parser": "none"}, None, None),
        (QWEN3, {"tool_call_parser": None, "reasoning_parser": "deepseek_r1"}, "hermes", "deepseek_r1"),
        (QWEN3, {"tool_call_parser": "pythonic", "enable_auto_tool_choice": True}, "pythonic", "qwen3"),
        (QWEN3, {"enable_auto_tool_choice": True}, "hermes", "qwen3"),
        ({"default": "{{ messages }}", "tool_use": QWEN3}, {}, "hermes", None),
        ("{{ messages }}", {}, None, None),
        (None, {}, None, None),
    ],
)
def test_options_win_over_what_the_checkpoint_tells(
    template: Any, options: dict[str, Any], tools: str | None, reasoning: str | None
) -> None:
    found = choose(template, **options)
    assert (found.tools, found.reasoning) == (tools, reasoning)


def test_each_choice_is_told_with_its_reason() -> None:
    assert choose(QWEN3).report == (
        "tool calls: hermes, by the chat template (--tool-call-parser none leaves the text as it is)",
        "reasoning: qwen3, by the chat template (--reasoning-parser none leaves the text as it is)",
    )
    assert choose(None, reasoning_parser="none").report == (
        "tool calls: left in the text; the chat template does not tell a format for certain (--tool-call-parser)",
        "reasoning: left in the text, as asked",
    )
    assert choose(None, tool_call_parser="hermes").report[0] == "tool calls: hermes, as asked"


def test_a_model_that_may_call_needs_a_format() -> None:
    with pytest.raises(
        ConfigError, match="does not tell for certain how this model writes tool calls; name the format"
    ):
        choose("{{ messages }}", enable_auto_tool_choice=True)
    with pytest.raises(ConfigError, match="enable_auto_tool_choice needs tool_call_parser"):
        choose(QWEN3, enable_auto_tool_choice=True, tool_call_parser="none")


def test_calls_that_a_request_asks_for_need_no_option(caplog: pytest.LogCaptureFixture) -> None:
    """The model decides by itself only where the server says so, as with vLLM."""
    caplog.set_level(logging.INFO, "jaxengine")
    with live(make_engine(runner=ScriptedRunner, max_len=800, tokenizer=tokenizer(QWEN3))) as server:
        assert "tool calls: hermes, by the chat template" in caplog.text
        assert "--enable-auto-tool-choice lets the model decide" in caplog.text
        refused = server.http.post(
            "/v1/chat/completions", json={"messages": [{"role": "user", "content": "?"}], "tools": TOOLS}
        )
        assert refused.status_code == 400
        assert refused.json()["error"]["message"] == '"auto" tool choice requires --enable-auto-tool-choice to be set'
        server.runner.write(CALL)
        whole, _ = message(server, tools=TOOLS, tool_choice="required")
        assert calls(whole) == [("now", {})]
        server.runner.write("<think>So.</think>Yes.")
        whole, _ = message(server)
        assert (whole["reasoning"], whole["content"]) == ("So.", "Yes.")
