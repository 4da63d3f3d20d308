"""Which formats a checkpoint's tool calls and reasoning certainly have, by its chat template and the type of the model.

A wrong format swallows answers, so every row asks for texts that only templates of its format have, and where rows of several
formats fit none is chosen. Rows were written by hand after the templates that the models are published with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

BAR = "\uff5c"  # DeepSeek's markers have the wide one
GLM = ("glm4", "glm4_moe", "glm4_moe_lite")
THINK = ("<think>", "</think>")
QWEN = (
    *("qwen3", "qwen3_moe", "qwen3_next"),
    *("qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"),
)


@dataclass(frozen=True, slots=True)
class Sign:
    """A template of this `format` has all of `texts` and none of `others`.

    `models` are the values of `model_type` in config.json that it stands for, where texts alone do not tell.
    """

    format: str
    texts: tuple[str, ...]
    others: tuple[str, ...] = ()
    models: tuple[str, ...] | None = None

    def fits(self, template: str, model_type: str | None) -> bool:
        """Whether a template of a model of this type is of the format."""
        if self.models is not None and model_type not in self.models:
            return False
        return all(text in template for text in self.texts) and not any(text in template for text in self.others)


TOOL_SIGNS: Sequence[Sign] = (
    Sign(
        "deepseek_v3",
        (f"<{BAR}tool▁calls▁begin{BAR}>", f"<{BAR}tool▁sep{BAR}>", "```json"),
        models=("deepseek_v3",),  # its distillations have the template and were not taught to call
    ),
    Sign(
        "deepseek_v31",
        (f"<{BAR}tool▁calls▁begin{BAR}>", f"<{BAR}tool▁sep{BAR}>"),
        others=("```json",),
        models=("deepseek_v3",),
    ),
    Sign("gemma4", ("<|tool_call>call:", "<tool_call|>")),
    Sign("glm45", ("<tool_call>", "<arg_key>", "<arg_value>")),
    Sign("granite", ("<|tool_call|>",), models=("granite", "granitemoe")),
    Sign("hermes", ("<tool_call>", "</tool_call>", '{"name": '), others=("<function=", "<arg_key>")),
    Sign("internlm", ("<|action_start|><|plugin|>",)),
    Sign(
        "kimi_k2",
        ("<|tool_calls_section_begin|>", "<|tool_call_argument_begin|>"),
        models=("kimi_k2", "deepseek_v3"),
    ),
    Sign(
        "llama3_json",
        ('{"name": function name, "parameters": dictionary of argument name and its value}',),
        models=("llama",),
    ),
    Sign(  # as vLLM's template asks for calls; the one that Llama 4 is published with asks for JSON
        "llama4_pythonic",
        ("[func_name1(param1=value1, param2=value2), func_name2(...)]",),
        models=("llama4", "llama4_text"),
    ),
    Sign("minimax_m2", ("<minimax:tool_call>", "<invoke name="), models=("minimax", "minimax_m2")),
    Sign("mistral", ("[TOOL_CALLS]",)),
    Sign("openai", ("<|channel|>", "to=functions."), models=("gpt_oss",)),
    Sign("phi4_mini_json", ("functools[{",)),
    Sign("pythonic", ("[func_name1(params_name1=params_value1, params_name2=params_value2...), func_name2(params)]",)),
    Sign("qwen3_coder", ("<tool_call>", "<function=", "<parameter=")),
    Sign("xlam", ("make calls in a single JSON array", '[{"name": "tool_call_name", "arguments": {')),
)

REASONING_SIGNS: Sequence[Sign] = (
    # The prompt opens the block.
    Sign("deepseek_r1", (f"<{BAR}Assistant{BAR}><think>",)),
    Sign("deepseek_r1", ("assistant\n<think>", "</think>"), models=("qwen2",)),  # QwQ
    Sign("minimax_m2", THINK, models=("minimax", "minimax_m2")),
    Sign("olmo3", ("assistant\n<think>",), models=("olmo3",)),
    # A text that reasons says so.
    Sign("deepseek_v3", THINK, others=(f"<{BAR}Assistant{BAR}><think>",), models=("deepseek_v3",)),
    Sign("gemma4", ("<|channel>thought", "<channel|>")),
    Sign("glm45", THINK, models=GLM),
    Sign("mistral", ("[THINK]", "[/THINK]")),
    Sign("openai_gptoss", ("<|channel|>analysis",), models=("gpt_oss",)),
    Sign("qwen3", THINK, models=(*QWEN, "exaone4", "smollm3")),
    Sign("seed_oss", ("<seed:think>", "</seed:think>"), models=("seed_oss",)),
)


def certain_format(signs: Sequence[Sign], template: str, model_type: str | None) -> str | None:
    """The one format that `signs` tell of a template; None when they tell none or several.

    Strings in a template may be written with the escapes of jinja, `\\n` and `\\"`.
    """
    plain = template.replace("\\n", "\n").replace('\\"', '"').replace("\\'", "'")
    found = {sign.format for sign in signs if sign.fits(plain, model_type)}
    return found.pop() if len(found) == 1 else None
