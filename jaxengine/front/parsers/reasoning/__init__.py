"""Reasoning formats, by vLLM's names: a row each."""

from __future__ import annotations

from collections.abc import Mapping

from jaxengine.front.parsers.reasoning.blocks import BlockParser, ReasoningFormat, ReasoningParser
from jaxengine.front.parsers.reasoning.harmony import HarmonyFormat

_OPEN = ReasoningFormat(begin="<think>", end="</think>", begins_open=True)
"""The prompt or the model opens the block; what never closes it is reasoning to the end."""

_MARKED = ReasoningFormat(begin="<think>", end="</think>", begins_open=False)
"""A text that begins with the marker reasons; others do not, unless the prompt opened the block."""

REASONING_FORMATS: Mapping[str, ReasoningFormat] = {
    "deepseek_r1": _OPEN,
    "deepseek_v3": _MARKED,  # V3.1: its template ends with one marker or the other, as `thinking` says
    "gemma4": ReasoningFormat(begin="<|channel>thought\n", end="<channel|>", begins_open=False),
    "glm45": _MARKED,
    "granite": ReasoningFormat(
        begin="Here is my thought process:",
        end="Here is my response:",
        begins_open=False,
        also=("Here's my thought process:", "Here's my response:"),
    ),
    "kimi_k2": ReasoningFormat(
        begin="<think>", end="</think>", begins_open=True, before_end="<|tool_calls_section_begin|>"
    ),
    "minimax_m2": _OPEN,
    "mistral": ReasoningFormat(begin="[THINK]", end="[/THINK]", begins_open=False),
    "olmo3": _OPEN,
    "openai_gptoss": HarmonyFormat(
        begin="<|channel|>analysis<|message|>",
        end="<|end|>",
        begins_open=False,
        answer="<|start|>assistant<|channel|>final<|message|>",
    ),
    "qwen3": _MARKED,
    "seed_oss": ReasoningFormat(begin="<seed:think>", end="</seed:think>", begins_open=True),
    "step3": _OPEN,
}

__all__ = ["REASONING_FORMATS", "BlockParser", "ReasoningFormat", "ReasoningParser"]
