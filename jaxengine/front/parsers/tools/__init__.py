"""Tool call formats: one file and one row each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from jaxengine.front.parsers.calls import Functions
from jaxengine.front.parsers.regions import Format, RegionParser
from jaxengine.front.parsers.tools.gemma4 import Gemma4
from jaxengine.front.parsers.tools.hermes import Hermes
from jaxengine.front.parsers.tools.llama3_json import Llama3Json
from jaxengine.front.parsers.tools.llama4_pythonic import Llama4Pythonic
from jaxengine.front.parsers.tools.marked_json import GRANITE, INTERNLM, JAMBA, PHI4_MINI_JSON, XLAM
from jaxengine.front.parsers.tools.mistral import Mistral
from jaxengine.front.parsers.tools.openai import OpenAI
from jaxengine.front.parsers.tools.pythonic import Pythonic
from jaxengine.front.parsers.tools.sections import DEEPSEEK_V3, DEEPSEEK_V31, KIMI_K2
from jaxengine.front.parsers.tools.tagged import GLM45, MINIMAX_M2, QWEN3_CODER
from jaxengine.front.parsers.tools.traits import AfterMarker


class ToolFormat(Protocol):
    """A format, for a request's functions. `markers` are texts that may be special tokens, which must then not be skipped.

    What is special about it are `Traits`.
    """

    @property
    def markers(self) -> tuple[str, ...]: ...
    @property
    def looks_like_json(self) -> bool: ...
    @property
    def after_marker(self) -> AfterMarker | None: ...
    @property
    def short_ids(self) -> bool: ...

    def __call__(self, functions: Functions) -> Format: ...

    def grammar(self, functions: Functions, *, several: bool) -> str:
        """Calls of these functions and nothing else, one or several, in Lark."""
        ...


TOOL_FORMATS: Mapping[str, ToolFormat] = {
    "deepseek_v3": DEEPSEEK_V3,
    "deepseek_v31": DEEPSEEK_V31,
    "gemma4": Gemma4(),
    "glm45": GLM45,
    "granite": GRANITE,
    "hermes": Hermes(),
    "internlm": INTERNLM,
    "jamba": JAMBA,
    "kimi_k2": KIMI_K2,
    "llama3_json": Llama3Json(),
    "llama4_json": Llama3Json(),
    "llama4_pythonic": Llama4Pythonic(),
    "minimax_m2": MINIMAX_M2,
    "mistral": Mistral(),
    "openai": OpenAI(),
    "phi4_mini_json": PHI4_MINI_JSON,
    "pythonic": Pythonic(),
    "qwen3_coder": QWEN3_CODER,
    "qwen3_xml": QWEN3_CODER,
    "xlam": XLAM,
}


def tool_parser(name: str, functions: Functions) -> RegionParser:
    """A parser for one sequence, in one of `TOOL_FORMATS`."""
    return RegionParser(TOOL_FORMATS[name](functions))
