"""`/v1/chat/completions`: messages to a prompt, the answer as a message, whole and streamed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.fronts import TOKENIZER
from tests.server.rig import Live, live

MESSAGES = [{"role": "user", "content": "Hi"}]
GREEDY = {"temperature": 0, "max_tokens": 12}


def chat(server: Live, **body: Any) -> dict[str, Any]:
    response = server.post("/v1/chat/completions", **{"messages": MESSAGES, **body})
    assert response.status_code == 200, response.text
    return response.json()


def stream(server: Live, **body: Any) -> list[dict[str, Any]]:
    *events, done = server.events("/v1/chat/completions", **{"messages": MESSAGES, **body})
    assert done == "[DONE]"
    return [json.loads(event) for event in events]


def prompt_of(answer: dict[str, Any]) -> str:
    return TOKENIZER.decode(answer["prompt_token_ids"])


def joined(chunks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the chunks of a stream say about each choice."""
    choices: dict[int, dict[str, Any]] = {}
    for part in (choice for chunk in chunks for choice in chunk["choices"]):
        whole = choices.setdefault(
            part["index"],
            {"content": "", "role": None, "logprobs": [], "token_ids": [], "finish_reason": None, "stop_reason": None},
        )
        assert whole["finish_reason"] is None, "a chunk came after the last"
        if whole["role"] is None:
            assert part["delta"] == {"role": "assistant", "content": ""}
        whole["role"] = part["delta"].get("role", whole["role"])
        whole["content"] += part["delta"].get("content", "")
        whole["logprobs"] += (part["logprobs"] or {"content": []})["content"]
        whole["token_ids"] += part.get("token_ids", [])
        if part["finish_reason"] is not None:
            whole["finish_reason"], whole["stop_reason"] = part["finish_reason"], part["stop_reason"]
    return [choices[index] for index in sorted(choices)]


def test_the_answer_is_what_the_rendered_prompt_continues_with(server: Live) -> None:
    answer = chat(server, **GREEDY, return_token_ids=True)
    [choice] = answer["choices"]
    assert prompt_of(answer) == "<user>Hi<bot>"
    plain = server.post("/v1/completions", prompt=answer["prompt_token_ids"], **GREEDY).json()["choices"][0]
    assert choice["message"] == {
        "role": "assistant",
        "content": plain["text"],
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
        "reasoning": None,
    }
    assert (choice["finish_reason"], choice["logprobs"]) == (plain["finish_reason"], None)
    assert (answer["object"], answer["model"]) == ("chat.completion", "tiny")
    assert answer["id"].startswith("chatcmpl-")


BODIES: list[dict[str, Any]] = [
    {},
    {"logprobs": True},
    {"logprobs": True, "top_logprobs": 3},
    {"n": 3, "temperature": 1.0, "seed": 5, "logprobs": True, "top_logprobs": 1},
    {"max_tokens": 60, "stop": ["a", "e "], "temperature": 1.0, "seed": 3, "logprobs": True},
    {"max_tokens": 60, "temperature": 1.0, "seed": 13, "ignore_eos": True},
]


@pytest.mark.parametrize("extra", BODIES, ids=str)
def test_joined_deltas_are_the_whole_answer(server: Live, extra: dict[str, Any]) -> None:
    body = {**GREEDY, **extra, "return_token_ids": True}
    whole = chat(server, **body)
    chunks = stream(server, **body, stream_options={"include_usage": True})
    found = joined(chunks)
    assert len(found) == len(whole["choices"])
    for choice, delta in zip(whole["choices"], found, strict=True):
        assert delta["content"] == choice["message"]["content"]
        assert delta["role"] == choice["message"]["role"]
        assert delta["logprobs"] == ((choice["logprobs"] or {"content": []})["content"])
        for name in ("token_ids", "finish_reason", "stop_reason"):
            assert delta[name] == choice[name]
    assert chunks[0]["prompt_token_ids"] == whole["prompt_token_ids"]
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["total_tokens"] == whole["usage"]["total_tokens"]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}


def test_log_probabilities_have_exactly_the_asked_number_of_alternatives(server: Live) -> None:
    content = chat(server, **GREEDY, logprobs=True, top_logprobs=2)["choices"][0]["logprobs"]["content"]
    assert len(content) == 12
    for entry in content:
        assert bytes(entry["bytes"]).decode() == entry["token"]
        scores = [top["logprob"] for top in entry["top_logprobs"]]
        assert len(scores) == 2
        assert scores == sorted(scores, reverse=True)
    bare = chat(server, **GREEDY, logprobs=True)["choices"][0]["logprobs"]["content"]
    assert all(entry["top_logprobs"] == [] for entry in bare)


def test_what_the_template_sees(server: Live) -> None:
    parts = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    assert prompt_of(chat(server, messages=parts, return_token_ids=True, **GREEDY)) == "<user>a\nb<bot>"
    bare = chat(server, add_generation_prompt=False, return_token_ids=True, **GREEDY)
    assert prompt_of(bare) == "<user>Hi"
    started = [*MESSAGES, {"role": "assistant", "content": "Well"}]
    goes_on = chat(
        server,
        messages=started,
        add_generation_prompt=False,
        continue_final_message=True,
        return_token_ids=True,
        **GREEDY,
    )
    assert prompt_of(goes_on) == "<user>Hi<assistant>Well"


def test_echo_tells_the_message_that_the_answer_goes_on_with(server: Live) -> None:
    started = [*MESSAGES, {"role": "assistant", "content": [{"type": "text", "text": "Well"}]}]
    goes_on = {"add_generation_prompt": False, "continue_final_message": True, **GREEDY}
    bare, whole = (text_of(chat(server, messages=started, **goes_on, echo=echo)) for echo in (False, True))
    assert whole == "Well" + bare
    *events, _ = server.events("/v1/chat/completions", messages=started, **goes_on, echo=True)
    deltas = [choice["delta"].get("content", "") for event in events for choice in json.loads(event)["choices"]]
    assert deltas[:2] == ["", "Well"]
    assert "".join(deltas) == whole
    assert text_of(chat(server, **GREEDY, echo=True)) == text_of(chat(server, **GREEDY)), "the user's own words are not"


def test_what_was_not_asked_for_is_null(server: Live) -> None:
    answer = chat(server, **GREEDY)
    for name in ("service_tier", "prompt_logprobs", "prompt_token_ids", "kv_transfer_params"):
        assert answer[name] is None
    assert answer["choices"][0]["token_ids"] is None


def test_usage_on_every_chunk_begins_at_nothing() -> None:
    with live(enable_force_include_usage=True) as server:
        asked = {"include_usage": True, "continuous_usage_stats": True}
        for options in (None, asked):
            *events, _ = server.events(
                "/v1/chat/completions", messages=MESSAGES, stream_options=options, **GREEDY, ignore_eos=True
            )
            counts = [json.loads(event)["usage"]["completion_tokens"] for event in events]
            assert (counts[0], counts[-1]) == (0, 12)
            assert counts == sorted(counts)
        assert json.loads(events[-1])["usage"]["prompt_tokens_details"] is None


def test_without_max_tokens_the_answer_may_take_the_rest_of_the_context(server: Live) -> None:
    answer = chat(server, temperature=0, ignore_eos=True)
    assert answer["usage"]["total_tokens"] == 96
    short = chat(server, temperature=0, ignore_eos=True, max_completion_tokens=3, max_tokens=50)
    assert short["usage"]["completion_tokens"] == 3


def text_of(answer: dict[str, Any]) -> str:
    text: str = answer["choices"][0]["message"]["content"]
    return text


WRONG: list[tuple[dict[str, Any], str, str | None]] = [
    ({"messages": []}, "messages must be a non-empty list", "messages"),
    ({"messages": "Hi"}, "messages", "messages"),
    ({"messages": [{"content": "Hi"}]}, "message 0 must be a dict with a role", "messages"),
    ({"messages": [{"role": "user", "content": 3}]}, "content of message 0", "messages"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://a/b.png"}}]}]},
        r"At most 0 image(s) may be provided in one prompt: this model takes text alone",
        "image",
    ),
    ({"top_logprobs": 2}, "top_logprobs needs logprobs=true", "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs=21 asks", "top_logprobs"),
    ({"logprobs": True, "top_logprobs": -1}, "at most 20", "top_logprobs"),
    ({"add_generation_prompt": True, "continue_final_message": True}, "continue_final_message", None),
    ({"chat_template": "{{ 1 }}"}, "--trust-request-chat-template", "chat_template"),
    ({"chat_template_kwargs": {"chat_template": "x"}}, "must not have chat_template", "chat_template_kwargs"),
    ({"chat_template_kwargs": {"tokenize": True}}, "must not have tokenize", "chat_template_kwargs"),
    ({"functions": [{"name": "f"}]}, "functions is not supported: use tools", "functions"),
    ({"max_completion_tokens": 0}, "max_completion_tokens must be an integer of at least 1", "max_completion_tokens"),
    ({"messages": [{"role": "user", "content": "long " * 500}]}, "maximum context length is 96", "input_tokens"),
]


@pytest.mark.parametrize(("fields", "message", "param"), WRONG, ids=lambda value: str(value)[:60])
def test_wrong_bodies_say_what_is_wrong(server: Live, fields: dict[str, Any], message: str, param: str | None) -> None:
    response = server.post("/v1/chat/completions", **{"messages": MESSAGES, **fields})
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert message in error["message"]
    if param is not None:
        assert error["param"] == param


def test_templates_of_requests_run_only_when_they_are_trusted() -> None:
    options = {"default_chat_template_kwargs": {"mood": "sad", "place": "here"}, "response_role": "bot"}
    with live(trust_request_chat_template=True, **options) as server:
        answer = chat(
            server,
            chat_template="{{ mood }} {{ place }} {{ messages[0].content }}",
            chat_template_kwargs={"mood": "glad"},
            return_token_ids=True,
            **GREEDY,
        )
        assert prompt_of(answer) == "glad here Hi"
        assert answer["choices"][0]["message"]["role"] == "bot"
        broken = server.post("/v1/chat/completions", messages=MESSAGES, chat_template="{% for %}")
        assert broken.status_code == 400
        assert "not valid jinja" in broken.json()["error"]["message"]
