from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxengine.front.parsers.reasoning import REASONING_FORMATS
from tests.front.parsers.reading import pieces_of, read_reasoning

CASES = [
    # format, did the prompt open the block, text, reasoning, content
    ("deepseek_r1", None, "so it is</think>yes", "so it is", "yes"),
    ("deepseek_r1", None, "<think>so it is</think>\n\nyes", "so it is", "\n\nyes"),
    ("deepseek_r1", None, "never closed", "never closed", ""),
    ("deepseek_r1", True, "so</think>a </think> b", "so", "a </think> b"),
    ("deepseek_r1", False, "yes", "", "yes"),
    ("qwen3", None, "<think>\nso\n</think>\n\nyes", "\nso\n", "\n\nyes"),
    ("qwen3", None, "\n<think>so", "so", ""),
    ("qwen3", None, "no reason <think>x</think>", "", "no reason <think>x</think>"),
    ("qwen3", None, "<thin", "", "<thin"),
    ("qwen3", True, "so</think>yes", "so", "yes"),
    ("qwen3", True, "<think>so</thi", "so</thi", ""),
    ("qwen3", False, "<think>literally</think>", "", "<think>literally</think>"),
    ("qwen3", None, "", "", ""),
    ("deepseek_v3", True, "so</think>yes", "so", "yes"),
    ("deepseek_v3", False, "yes", "", "yes"),
    ("glm45", None, "<think>so</think>yes", "so", "yes"),
    ("gemma4", None, "<|channel>thought\nso<channel|>yes", "so", "yes"),
    ("gemma4", None, "yes <|channel>thought\n", "", "yes <|channel>thought\n"),
    ("gemma4", False, "yes", "", "yes"),
    ("glm45", None, "yes", "", "yes"),
    ("granite", None, "Here is my thought process: so\nHere is my response: yes", " so\n", " yes"),
    ("granite", None, "Here's my thought process: so Here's my response: yes", " so ", " yes"),
    ("granite", None, "Here is my thought process: so Here's my resp", " so Here's my resp", ""),
    ("granite", None, "Here is my", "", "Here is my"),
    ("granite", None, "yes", "", "yes"),
    ("kimi_k2", None, "<think>so</think>yes", "so", "yes"),
    ("kimi_k2", None, "so<|tool_calls_section_begin|>call", "so", "<|tool_calls_section_begin|>call"),
    ("kimi_k2", False, "yes", "", "yes"),
    ("minimax_m2", None, "so</think>yes", "so", "yes"),
    ("mistral", None, "[THINK]so[/THINK]yes", "so", "yes"),
    ("mistral", None, "yes [THINK]", "", "yes [THINK]"),
    ("olmo3", None, "so</think>yes", "so", "yes"),
    ("seed_oss", None, "<seed:think>so</think></seed:think>yes", "so</think>", "yes"),
    ("seed_oss", None, "so</seed:think>yes", "so", "yes"),
    (
        "openai_gptoss",
        None,
        "<|channel|>analysis<|message|>so<|end|><|start|>assistant<|channel|>final<|message|>yes<|return|>",
        "so",
        "yes",
    ),
    ("openai_gptoss", None, "<|channel|>analysis<|message|>so", "so", ""),
    (
        "openai_gptoss",
        None,
        "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>commentary<|message|>I call<|end|>"
        "<|start|>assistant<|channel|>analysis<|message|>b<|end|>"
        "<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>",
        "a\nb",
        "I call<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>",
    ),
    ("openai_gptoss", None, "yes <|channel|> no", "", "yes <|channel|> no"),
    ("openai_gptoss", None, "<|channel|>no header<|message|>yes", "", "<|channel|>no header<|message|>yes"),
    ("step3", None, "so</think>yes", "so", "yes"),
]


@pytest.mark.parametrize(("name", "opened", "text", "reasoning", "content"), CASES)
def test_the_block_is_split_off(name: str, opened: bool | None, text: str, reasoning: str, content: str) -> None:
    assert read_reasoning(name, [text], opened=opened) == (reasoning, content)
    assert read_reasoning(name, list(text), opened=opened) == (reasoning, content)


@given(
    name=st.sampled_from(sorted(REASONING_FORMATS)),
    opened=st.sampled_from([None, True, False]),
    parts=st.lists(
        st.sampled_from(
            [
                "<think>",
                "</think>",
                "<",
                "/think>",
                "[THINK]",
                "[/THINK",
                "]",
                "<seed:think>",
                "</seed:",
                "<|start|>assistant",
                "Here is my thought process:",
                "Here's my resp",
                "onse:",
                "<|tool_calls_section_begin|>",
                "<|channel|>analysis",
                "<|channel|>final<|mess",
                "age|>",
                "<|message|>",
                "<|end|>",
                " to=functions.f",
                " ",
                "\n",
                "a",
                "é🏔",
            ]
        ),
        max_size=8,
    ),
    cuts=st.lists(st.integers(0, 60), max_size=8),
)
def test_cuts_do_not_matter(name: str, opened: bool | None, parts: list[str], cuts: list[int]) -> None:
    text = "".join(parts)
    whole = read_reasoning(name, [text], opened=opened)
    assert read_reasoning(name, list(text), opened=opened) == whole
    assert read_reasoning(name, pieces_of(text, cuts), opened=opened) == whole


def test_only_the_end_of_a_prompt_tells_whether_the_block_is_open() -> None:
    qwen3 = REASONING_FORMATS["qwen3"]
    assert qwen3.opened_by("<|im_start|>assistant\n<think>\n") is True
    assert qwen3.opened_by("<|im_start|>assistant\n<think>\n\n</think>\n\n") is False
    gemma4 = REASONING_FORMATS["gemma4"]
    assert gemma4.opened_by("<|turn>model\n<|channel>thought\n") is True
    assert gemma4.opened_by("<|turn>model\n<|channel>thought\n<channel|>") is False
    assert qwen3.opened_by("what does <think> mean?<|im_start|>assistant\n") is None
