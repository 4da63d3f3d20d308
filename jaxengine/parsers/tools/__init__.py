"""Tool call formats: one file and one row each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from jaxengine.parsers.calls import Functions
from jaxengine.parsers.regions import Format, RegionParser
from jaxengine.parsers.tools.hermes import Hermes
from jaxengine.parsers.tools.llama3_json import Llama3Json
from jaxengine.parsers.tools.mistral import Mistral
from jaxengine.parsers.tools.openai import OpenAI
from jaxengine.parsers.tools.pythonic import Pythonic
from jaxengine.parsers.tools.qwen3_coder import Qwen3Coder


class ToolFormat(Protocol):
    """A format, for a request's functions. `markers` are texts that may be special tokens, which must then not be skipped."""

    @property
    def markers(self) -> tuple[str, ...]: ...

    def __call__(self, functions: Functions) -> Format: ...

    def grammar(self, functions: Functions, *, several: bool) -> str:
        """Calls of these functions and nothing else, one or several, in Lark."""
        ...


TOOL_FORMATS: Mapping[str, ToolFormat] = {
    "hermes": Hermes,
    "llama3_json": Llama3Json,
    "mistral": Mistral,
    "openai": OpenAI,
    "pythonic": Pythonic,
    "qwen3_coder": Qwen3Coder,
}


def tool_parser(name: str, functions: Functions) -> RegionParser:
    """A parser for one sequence, in one of `TOOL_FORMATS`."""
    return RegionParser(TOOL_FORMATS[name](functions))
