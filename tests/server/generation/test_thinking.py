"""A budget of thoughts over HTTP: kept to the token wherever a request may have one, refused where it cannot be."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from jaxengine.text.tokenizer import Tokenizer
from tests.fronts import TEMPLATE, make_engine, make_tokenizer
from tests.server.rig import Live, live

HI = [{"role": "user", "content": "Hi"}]
END = "So."
PROMPTED = 1
"""Tokens of the block that the prompt has: the line break behind the marker."""


def thinker() -> Tokenizer:
    """Its template opens a block, unless thinking is disabled."""
    tokenizer = make_tokenizer()
    tokenizer.backend.add_tokens(["<think>", "</think>"])
    template = (
        TEMPLATE
        + "{% if enable_thinking is undefined or enable_thinking %}<think>{{ '\n' }}{% else %}<think></think>{% endif %}"
    )
    tokenizer.settings = type(tokenizer.settings)(
        special_tokens=tokenizer.settings.special_tokens, chat_templates=template
    )
    return tokenizer


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    tokenizer = thinker()
    front = make_engine(tokenizer=tokenizer, vocab_size=tokenizer.vocab_size)
    with live(front, reasoning_parser="qwen3", reasoning_end=END + "</think>") as server:
        yield server


def thoughts(server: Live, token_ids: list[int]) -> tuple[int, str]:
    """How many tokens are thoughts, and how they end."""
    tokenizer = server.service.tokenizer
    assert tokenizer is not None
    end = tokenizer.backend.token_to_id("</think>")
    said = token_ids[: token_ids.index(end)] if end in token_ids else token_ids
    return len(said), tokenizer.decode(said[-len(tokenizer.encode(END, add_special_tokens=False)) :])


def chat(server: Live, **body: Any) -> dict[str, Any]:
    fields = {"messages": HI, "max_tokens": 40, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    response = server.post("/v1/chat/completions", **{**fields, **body})
    assert response.status_code == 200, response.text
    [choice] = response.json()["choices"]
    return {**choice, "usage": response.json()["usage"]}


def test_a_budget_of_nothing_ends_thoughts_at_once(server: Live) -> None:
    assert chat(server, thinking_token_budget=0)["message"]["reasoning"].strip() == END


@pytest.mark.parametrize("budget", [0, 1, 7])
def test_thoughts_end_at_their_budget_with_the_servers_words(server: Live, budget: int) -> None:
    tokenizer = server.service.tokenizer
    assert tokenizer is not None
    words = len(tokenizer.encode(END, add_special_tokens=False))
    answer = chat(server, thinking_token_budget=budget + PROMPTED)
    assert thoughts(server, answer["token_ids"]) == (budget + words, END)
    assert answer["message"]["reasoning"].endswith(END)
    assert answer["message"]["content"]
    [choice] = server.post(
        "/v1/completions",
        prompt="a<think>\n",
        thinking_token_budget=budget + PROMPTED,
        max_tokens=40,
        temperature=0,
        ignore_eos=True,
        return_token_ids=True,
    ).json()["choices"]
    assert thoughts(server, choice["token_ids"]) == (budget + words, END)


@pytest.mark.parametrize("fields", [{}, {"thinking_token_budget": -1}, {"thinking_token_budget": 41}])
def test_no_budget_and_one_that_is_not_reached_change_nothing(server: Live, fields: dict[str, int]) -> None:
    plain = chat(server)
    assert END not in plain["message"]["reasoning"]
    assert chat(server, **fields)["token_ids"] == plain["token_ids"]


def test_a_model_that_does_not_think_is_left_alone(server: Live) -> None:
    own = {"chat_template_kwargs": {"enable_thinking": False}}
    assert chat(server, thinking_token_budget=2, **own)["token_ids"] == chat(server, **own)["token_ids"]


def test_an_answer_of_a_given_form_follows_the_forced_end(server: Live) -> None:
    answer = chat(server, thinking_token_budget=3, structured_outputs={"choice": ["yes", "no"]}, ignore_eos=False)
    assert answer["message"]["reasoning"].endswith(END)
    assert answer["message"]["content"].strip() in ("yes", "no")


def test_anthropics_budget_is_the_same(server: Live) -> None:
    body: dict[str, Any] = {"messages": HI, "max_tokens": 40, "temperature": 0}
    answer = server.post("/v1/messages", **body, thinking={"type": "enabled", "budget_tokens": 4}).json()
    assert answer["content"][0]["thinking"].endswith(END)
    adaptive = server.post("/v1/messages", **body, thinking={"type": "adaptive"}).json()
    assert END not in adaptive["content"][0]["thinking"]


@pytest.mark.parametrize("budget", [-2, 1.5, "7", True])
def test_what_is_no_number_of_tokens_is_refused(server: Live, budget: Any) -> None:
    response = server.post("/v1/chat/completions", messages=HI, thinking_token_budget=budget)
    assert response.status_code == 400
    assert "thinking_token_budget" in response.text


@pytest.mark.parametrize(
    ("parser", "message"),
    [
        (None, "start it with --reasoning-parser"),
        ("mistral", "do not stand between two tokens of their own"),
        ("openai_gptoss", "do not stand between two tokens of their own"),
    ],
)
def test_where_it_cannot_be_kept_it_is_refused(parser: str | None, message: str) -> None:
    tokenizer = thinker()
    with live(make_engine(tokenizer=tokenizer, vocab_size=tokenizer.vocab_size), reasoning_parser=parser) as server:
        chat_response = server.post("/v1/chat/completions", messages=HI, thinking_token_budget=4)
        thinking = {"type": "enabled", "budget_tokens": 1024}
        anthropic = server.post("/v1/messages", messages=HI, max_tokens=4, thinking=thinking)
    assert (chat_response.status_code, anthropic.status_code) == (400, 400)
    assert message in chat_response.json()["error"]["message"]
    assert message in anthropic.json()["error"]["message"]
