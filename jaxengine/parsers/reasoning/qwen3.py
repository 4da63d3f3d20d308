"""Qwen3: a text that begins with `<think>` reasons until `</think>`; others do not reason, unless the prompt opened the block."""

from jaxengine.parsers.reasoning.blocks import ReasoningFormat

FORMAT = ReasoningFormat(begin="<think>", end="</think>", begins_open=False)
