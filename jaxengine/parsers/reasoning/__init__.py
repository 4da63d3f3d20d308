"""Reasoning formats: one file and one row each."""

from __future__ import annotations

from collections.abc import Mapping

from jaxengine.parsers.reasoning import deepseek_r1, qwen3
from jaxengine.parsers.reasoning.blocks import BlockParser, ReasoningFormat

REASONING_FORMATS: Mapping[str, ReasoningFormat] = {
    "deepseek_r1": deepseek_r1.FORMAT,
    "qwen3": qwen3.FORMAT,
}

__all__ = ["REASONING_FORMATS", "BlockParser", "ReasoningFormat"]
