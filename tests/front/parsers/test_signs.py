"""Formats that chat templates tell: one of each that is known, none where two could be meant or the model was not taught it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jaxengine import embedded
from jaxengine.front.parsers.calls import Call
from jaxengine.front.parsers.reasoning import REASONING_FORMATS
from jaxengine.front.parsers.signs import BAR, REASONING_SIGNS, TOOL_SIGNS, certain_format
from jaxengine.front.parsers.tools import TOOL_FORMATS
from jaxengine.text.chat import ChatTemplate
from tests.front.parsers.reading import read_calls

R1 = (
    "{{'<|Assistant|><|tool▁calls▁begin|>' + x + '<|tool▁sep|>' + '```json'}}{{'</think>'}}"
    "{{'<|Assistant|><think>\\n'}}"
).replace("|", BAR)
V31 = "{{'<|Assistant|></think>'}}{{'<think>'}}{{'<|tool▁calls▁begin|>' + f + '<|tool▁sep|>' + a}}".replace("|", BAR)
QWEN3 = "{{- '<tool_call>\\n{\"name\": \"' + f + '}\\n</tool_call>' }}{{- '<think>\\n' + r + '\\n</think>\\n\\n' }}"
CODER = "{{- '<tool_call>\\n<function=' + f + '>\\n<parameter=' + p + '>\\n' }}{{- '</function>\\n</tool_call>' }}"
GLM = "{{ '\\n<tool_call>' + f }}<arg_key>{{ k }}</arg_key><arg_value>{{ v }}</arg_value></tool_call>{{ '<think></think>' }}"
MINIMAX = "{%- set begin = '<minimax:tool_call>' -%}<invoke name=\"f\">{{ '<think>' ~ r ~ '</think>' }}"
LLAMA = (
    '{{- \'Respond in the format {"name": function name, "parameters": dictionary of argument name and its value}.\' }}'
)
SEED = "{{ \"<seed:tool_call>\\n<function=f>\\n<parameter=a>\" }}{{ '<seed:think>' + r + '</seed:think>' }}"
GEMMA = "{{- '<|tool_call>call:' + f + '{' -}}{{- '}<tool_call|>' -}}{{- '<|channel>thought\\n<channel|>' -}}"
KIMI = "<|tool_calls_section_begin|><|tool_call_begin|>{{ id }}<|tool_call_argument_begin|>{{ a }}<|tool_call_end|>"
INTERNLM = (
    "{{- '<|im_start|>system name=<|plugin|>\\n[' }}{{- '<|action_start|><|plugin|>\\n' }}{{- '<|action_end|>' }}"
)
PHI = '{%- if tools %}lists are formatted as functools[{"name": [function name], "arguments": [as JSON]}, ...]{%- endif %}<|end|>'
PYTHONIC = "{{- 'Use the format [func_name1(params_name1=params_value1, params_name2=params_value2...), func_name2(params)] ' }}"
SCOUT = (
    '{%- set rules = "- Use exact format: [func_name1(param1=value1, param2=value2), func_name2(...)]\\nExamples:" %}'
)
XLAM = (
    "{% set rule %}When using tools, make calls in a single JSON array: \n\n"
    '[{"name": "tool_call_name", "arguments": {"arg1": "value1", "arg2": "value2"}}, ...]{% endset %}'
)
HARMONY = '{{- "<|start|>assistant to=functions." + f + "<|channel|>commentary json" }}{{- "<|channel|>analysis<|message|>" }}'


@pytest.mark.parametrize(
    ("template", "model_type", "tools", "reasoning"),
    [
        (R1, "deepseek_v3", "deepseek_v3", "deepseek_r1"),
        (R1, "qwen2", None, "deepseek_r1"),
        (R1.replace("<think>", ""), "deepseek_v3", "deepseek_v3", None),
        (V31, "deepseek_v3", "deepseek_v31", "deepseek_v3"),
        (KIMI, "kimi_k2", "kimi_k2", None),
        (QWEN3, "qwen3", "hermes", "qwen3"),
        (QWEN3.replace("'", '"').replace('{"name": "', '{\\"name\\": \\"'), "qwen3_moe", "hermes", "qwen3"),
        (QWEN3, "nobody_knows", "hermes", None),
        (QWEN3 + CODER, "qwen3", "qwen3_coder", "qwen3"),
        (QWEN3 + "[TOOL_CALLS]", "mistral", None, None),
        (CODER + GLM, "qwen3", None, "qwen3"),
        (CODER, "qwen3_moe", "qwen3_coder", None),
        (QWEN3 + "{{ '<|im_start|>assistant\\n<think>\\n' }}", "qwen2", "hermes", "deepseek_r1"),
        (GLM, "glm4_moe", "glm45", "glm45"),
        (MINIMAX, "minimax_m2", "minimax_m2", "minimax_m2"),
        (MINIMAX, "minimax_m3", None, None),
        (LLAMA, "llama", "llama3_json", None),
        (LLAMA, "llama4", None, None),
        (GEMMA, "gemma4", "gemma4", "gemma4"),
        (SEED, "seed_oss", None, "seed_oss"),
        (INTERNLM, "internlm2", "internlm", None),
        (PHI, "phi3", "phi4_mini_json", None),
        ("{{ '<|system|>' + message['content'] + '<|tool|>' + message['tools'] + '<|/tool|>' }}", "phi3", None, None),
        (PYTHONIC, "llama", "pythonic", None),
        (PYTHONIC + QWEN3, "gemma3", None, None),
        (SCOUT, "llama4", "llama4_pythonic", None),
        (SCOUT, "llama", None, None),
        (XLAM, "qwen2", "xlam", None),
        (XLAM.replace('"', '\\"'), "llama", "xlam", None),
        (HARMONY, "gpt_oss", "openai", "openai_gptoss"),
        ("respond only with <|tool_call|> followed by a JSON list of tools", "granite", "granite", None),
        ("{{ '[TOOL_CALLS]' + f + '[ARGS]' }}{{ '[THINK]' + r + '[/THINK]' }}", "mistral3", "mistral", "mistral"),
        ("{{ '<|im_start|>assistant\\n<think>' }}", "olmo3", None, "olmo3"),
        ("{{ r.split('<think>')[-1] }}", "olmo3", None, None),
        ("{{ messages }}", "qwen3", None, None),
        ("", None, None, None),
    ],
)
def test_a_template_tells_a_format_or_none(
    template: str, model_type: str | None, tools: str | None, reasoning: str | None
) -> None:
    assert certain_format(TOOL_SIGNS, template, model_type) == tools
    assert certain_format(REASONING_SIGNS, template, model_type) == reasoning


def test_signs_are_of_formats_that_are_built() -> None:
    assert {sign.format for sign in TOOL_SIGNS} <= TOOL_FORMATS.keys()
    assert {sign.format for sign in REASONING_SIGNS} <= REASONING_FORMATS.keys()


@pytest.mark.parametrize("source", ["embedded", "qwen3"])
def test_the_format_reads_what_a_real_template_writes(source: str, request: pytest.FixtureRequest) -> None:
    if source == "embedded":
        template = (Path(embedded.__file__).parent / "checkpoint" / "chat_template.jinja").read_text()
    else:
        folder: Path = request.getfixturevalue("shared") / "tokenizers" / "qwen3"
        template = json.loads((folder / "tokenizer_config.json").read_text())["chat_template"]
    found = certain_format(TOOL_SIGNS, template, "qwen3")
    assert found == "hermes"
    assert certain_format(REASONING_SIGNS, template, "qwen3") == ("qwen3" if source == "qwen3" else None)
    call = {"name": "weather", "arguments": {"city": "Oslo", "days": 3}}
    messages = [
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": "", "tool_calls": [{"function": call}]},
    ]
    written = ChatTemplate(template).render(
        messages,
        add_generation_prompt=False,
        continue_final_message=False,
        tools=None,
        content_format="string",
        variables={},
    )
    assert read_calls(found, [written])[1] == [Call("weather", json.dumps(call["arguments"]))]
