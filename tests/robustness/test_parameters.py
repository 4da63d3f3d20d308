"""Attacks through the values of a request (group C): the sender is refused, or served within the caps; nobody else notices."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.quick import slow_but
from tests.robustness.answers import assert_refused

REFUSED: dict[str, dict[str, Any]] = {
    "n of a million": {"n": 10**6},
    "n beyond 64 bits": {"n": 2**63},
    "n of zero": {"n": 0},
    "n below zero": {"n": -1},
    "n as a fraction": {"n": 1.5},
    "best_of": {"best_of": 10**6},
    "logprobs of a million": {"logprobs": 10**6},
    "logprobs below zero": {"logprobs": -7},
    "logprobs of the whole vocabulary": {"logprobs": -1},
    "prompt_logprobs of a million": {"prompt_logprobs": 10**6},
    "prompt_logprobs of the whole vocabulary": {"prompt_logprobs": -1},
    "echo with logprobs of a million": {"echo": True, "logprobs": 10**6},
    "min_tokens above max_tokens": {"min_tokens": 9, "max_tokens": 8},
    "min_tokens of a billion": {"min_tokens": 10**9, "max_tokens": None},
    "max_tokens of a billion": {"max_tokens": 10**9},
    "max_tokens below zero": {"max_tokens": -1},
    "logit_bias of an unknown token": {"logit_bias": {"999999999": 5}},
    "logit_bias of a negative token": {"logit_bias": {"-1": 5}},
    "logit_bias of no token": {"logit_bias": {"cat": 5}},
    "logit_bias of very many tokens": {"logit_bias": {str(token): 1 for token in range(20_000)}},
    "allowed_token_ids of nothing": {"allowed_token_ids": []},
    "allowed_token_ids unknown": {"allowed_token_ids": [1, 10**9]},
    "allowed_token_ids negative": {"allowed_token_ids": [-1]},
    "allowed_token_ids in very great number": {"allowed_token_ids": list(range(200_000))},
    "stop_token_ids unknown": {"stop_token_ids": [2**40]},
    "bad_words empty": {"bad_words": [""]},
    "bad_words in very great number": {"bad_words": [f"word{i}" for i in range(50_000)]},
    "a bad word without end": {"bad_words": ["x" * 100_000]},
    "stop strings in very great number": {"stop": [f"stop{i}" for i in range(10_000)]},
    "an empty stop string": {"stop": [""]},
    "a stop string without end": {"stop": "x" * 100_000},
    "stop of numbers": {"stop": [1, 2]},
    "temperature below zero": {"temperature": -0.1},
    "temperature beyond sense": {"temperature": 1e308},
    "temperature as text": {"temperature": "hot"},
    "top_p of zero": {"top_p": 0.0},
    "top_p above one": {"top_p": 1.5},
    "min_p above one": {"min_p": 1.5},
    "top_k below -1": {"top_k": -5},
    "top_k beyond 64 bits": {"top_k": 2**70},
    "presence_penalty beyond sense": {"presence_penalty": 1e308},
    "frequency_penalty beyond sense": {"frequency_penalty": -1e308},
    "repetition_penalty of zero": {"repetition_penalty": 0.0},
    "repetition_penalty below zero": {"repetition_penalty": -1.0},
    "a seed beyond 64 bits": {"seed": 2**64},
    "a seed as text": {"seed": "x"},
    "an empty prompt": {"prompt": ""},
    "no prompts": {"prompt": []},
    "an empty prompt among others": {"prompt": ["a", ""]},
    "a prompt of no ids": {"prompt": [[]]},
    "a prompt of null": {"prompt": None},
    "a prompt of nulls": {"prompt": [None]},
    "a prompt of texts and ids": {"prompt": ["a", 1]},
    "a prompt with an unknown id": {"prompt": [1, 10**9]},
    "a prompt with a negative id": {"prompt": [-1]},
    "a prompt with an id beyond 64 bits": {"prompt": [2**70]},
    "a prompt longer than the context": {"prompt": [5] * 513},
    "a prompt as long as the context": {"prompt": [5] * 512},
    "a prompt of a million characters": {"prompt": "a cat " * 200_000},
    "a prompt of a million letters": {"prompt": "a" * 1_000_000},
    "a hundred thousand prompts": {"prompt": ["a"] * 100_000},
    "more choices than allowed": {"prompt": ["a"] * 100, "n": 100},
    "an empty cache_salt": {"cache_salt": ""},
    "priority without the policy": {"priority": -5},
    "another's request id, with a path": {"request_id": "../../etc/passwd"},
    "a request id with a line break": {"request_id": "a\nb"},
    "truncation beyond the context": {"truncate_prompt_tokens": 10**9},
    "truncation to nothing": {"truncate_prompt_tokens": 0},
    "an unbuilt feature": {"suffix": "the end"},
    "stream options without a stream": {"stream_options": {"include_usage": True}},
    "prompt log probabilities of a stream": {"prompt_logprobs": 1, "stream": True},
}
"""More than the server takes, or nonsense: each is refused by name."""

SERVED: dict[str, dict[str, Any]] = {
    "the smallest temperature": {"temperature": 5e-324},
    "a temperature that is hardly one": {"temperature": 1e-45},
    "the smallest top_p": {"top_p": 1e-45},
    "the smallest repetition_penalty": {"repetition_penalty": 1e-45},
    "a tiny min_p": {"min_p": 1e-300},
    "the largest seed": {"seed": 2**63 - 1, "temperature": 1.0},
    "the smallest seed": {"seed": -(2**63), "temperature": 1.0},
    "a bias beyond sense, which is cut as vLLM cuts it": {"logit_bias": {"5": 1e308, "6": -1e308}, "temperature": 1.0},
    "a cache_salt without end": {"cache_salt": "x" * 100_000},
    "the strongest bias": {"logit_bias": {"5": 100, "6": -100}},
    "top_k beyond the vocabulary": {"top_k": 10**9, "temperature": 1.0},
    "top_k beyond 32 bits": {"top_k": 2**40, "temperature": 1.0},
    "one token allowed": {"allowed_token_ids": [7]},
    "control characters": {"prompt": "\x00\x01\x1b[31m\u202e\ufeff"},
    "characters outside the basic plane": {"prompt": "\U0001f600\U0010ffff"},
    "every field null": dict.fromkeys(
        (
            "n",
            "temperature",
            "top_p",
            "top_k",
            "min_p",
            "seed",
            "stop",
            "logprobs",
            "echo",
            "logit_bias",
            "stream",
            "model",
        )
    ),
    "the longest prompt": {"prompt": [5] * 511},
    "as many choices as allowed": {"prompt": ["a"] * 8, "n": 16, "max_tokens": 1, "temperature": 1.0},
    "all the stop strings allowed": {"stop": [chr(200 + i) for i in range(16)]},
    "unknown fields": {"__proto__": {"x": 1}, "constructor": "y", "\u0000": []},
}
"""At the edge, and fine."""


@pytest.mark.parametrize("attack", slow_but(REFUSED, list(REFUSED)[::3]))
def test_refused(attack: str, client: httpx.Client) -> None:
    fields = REFUSED[attack]
    response = post(client, fields)
    message = assert_refused(response)
    param = response.json()["error"]["param"] or ""
    assert any(field in message or field == param.split(".")[0] for field in fields), response.text


@pytest.mark.parametrize("attack", slow_but(SERVED, list(SERVED)[::3]))
def test_served(attack: str, client: httpx.Client) -> None:
    response = post(client, SERVED[attack])
    assert response.status_code == 200, response.text


def post(client: httpx.Client, fields: dict[str, Any]) -> httpx.Response:
    return client.post("/v1/completions", content=json.dumps({"prompt": "a", "max_tokens": 3, **fields}).encode())
