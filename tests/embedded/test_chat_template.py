"""The chat template of the packaged checkpoint: what it writes, and that training wrote the same."""

import random

import pytest

from examples.embedded_model import chat, tool_chat
from examples.embedded_model.corpus import TEMPLATE, render
from jaxengine.embedded import checkpoint_path

TOOL = {
    "type": "function",
    "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
CALL = {"type": "function", "function": {"name": "get_weather", "arguments": {"city": "Málaga"}}}


def test_packaged_template_is_the_one_of_training():
    packaged = (checkpoint_path() / "chat_template.jinja").read_text(encoding="utf-8")
    assert packaged == TEMPLATE.read_text(encoding="utf-8")


def test_plain_conversation():
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi!"}]
    expected = "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi!<|im_end|>\n"
    assert render(messages) == expected
    assert render(messages, prompt=True) == expected + "<|im_start|>assistant\n"
    assert render(messages[1:]).startswith("<|im_start|>user\n")


def test_tools_calls_and_results():
    messages = [
        {"role": "user", "content": "Weather in Málaga?"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": '"sunny"'},
        {"role": "tool", "content": '"warm"'},
    ]
    text = render(messages, [TOOL], prompt=True)
    system, rest = text.split("<|im_end|>\n", 1)
    assert system.startswith("<|im_start|>system\nYou can call these tools:\n<tools>\n{")
    assert '"name": "get_weather"' in system
    assert rest == (
        "<|im_start|>user\nWeather in Málaga?<|im_end|>\n"
        '<|im_start|>assistant\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Málaga"}}\n</tool_call><|im_end|>\n'
        '<|im_start|>user\n<tool_response>\n"sunny"\n</tool_response>\n<tool_response>\n"warm"\n</tool_response><|im_end|>\n'
        "<|im_start|>assistant\n"
    )


def test_arguments_may_be_json_text_as_openai_clients_send_them():
    as_text = {"type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Málaga"}'}}
    turns = [
        [{"role": "user", "content": "?"}, {"role": "assistant", "tool_calls": [call]}] for call in (CALL, as_text)
    ]
    assert render(turns[0]) == render(turns[1])


def test_two_calls_and_text_before_a_call():
    text = render(
        [{"role": "user", "content": "?"}, {"role": "assistant", "content": "Wait.", "tool_calls": [CALL, CALL]}]
    )
    assert "assistant\nWait.\n<tool_call>" in text
    assert "</tool_call>\n<tool_call>" in text


@pytest.mark.slow
def test_transformers_renders_the_same():
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint_path())
    rng = random.Random(5)
    for _ in range(20):
        messages, tools = tool_chat.conversation(rng)
        for each in (tools, None):
            want = tokenizer.apply_chat_template(messages, tools=each, tokenize=False, add_generation_prompt=True)
            assert render(messages, each, prompt=True) == want
        messages = chat.conversation(rng)
        assert render(messages) == tokenizer.apply_chat_template(messages, tokenize=False)
