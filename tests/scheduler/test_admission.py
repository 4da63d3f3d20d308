"""Requests that can never run are refused at once, with the numbers, and nothing else changes."""

from __future__ import annotations

import dataclasses

import pytest

from jaxengine.errors import ContextLengthError, RequestError
from jaxengine.pooling_params import PoolingParams
from tests.harness import EOS, Rig, make_request


def prompt(length: int, start: int = 1) -> list[int]:
    return [(start + 7 * i) % EOS for i in range(length)]


def test_a_prompt_longer_than_the_context() -> None:
    with pytest.raises(ContextLengthError, match=r"maximum context length is 96 tokens.*the prompt has 97"):
        Rig().add(make_request("a", prompt(97)))


def test_a_prompt_that_leaves_no_room_for_a_token() -> None:
    with pytest.raises(ContextLengthError, match="at least 1 output token"):
        Rig().add(make_request("a", prompt(96)))


def test_a_prompt_larger_than_the_pool() -> None:
    with pytest.raises(ContextLengthError, match="has 40 input tokens, and the KV cache holds 36 tokens"):
        Rig(num_pages=10).add(make_request("a", prompt(40)))


def test_a_prompt_that_just_fits_the_pool_yields_one_token() -> None:
    rig = Rig(num_pages=10)
    rig.add(make_request("a", prompt(36)))
    rig.run()
    rig.assert_oracle()
    assert len(rig.collected["a", 0].tokens) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompt": []}, "the prompt is empty"),
        ({"prompt": [3, 96]}, "token id 96, which is not in the vocabulary of 96"),
        ({"prompt": [-1]}, "token id -1"),
        ({"logit_bias": {96: 1.0}}, "logit_bias names token id 96"),
        ({"allowed_token_ids": [4, 200]}, "allowed_token_ids holds 200"),
        ({"priority": 1}, "priority 1 has no effect under scheduling_policy='fcfs'"),
    ],
)
def test_bad_input_is_refused_and_nothing_changes(changes: dict[str, object], message: str) -> None:
    rig = Rig()
    options: dict[str, object] = {"prompt": prompt(3), **changes}
    with pytest.raises(RequestError, match=message):
        rig.add(make_request("a", **options))  # type: ignore[arg-type]
    assert not rig.scheduler.has_unfinished
    rig.add(make_request("a", prompt(3)))


def test_a_request_for_no_tokens_is_refused() -> None:
    with pytest.raises(RequestError, match="max_tokens must be at least 1, got 0"):
        Rig().add(dataclasses.replace(make_request("a", prompt(3)), max_tokens=0))


def test_an_id_in_use() -> None:
    rig = Rig()
    rig.add(make_request("a", prompt(3)))
    with pytest.raises(RequestError, match="'a' is in use"):
        rig.add(make_request("a", prompt(4)))
    rig.run()
    rig.assert_oracle()


def test_a_prompt_that_is_pooled_needs_no_room_for_output() -> None:
    rig = Rig()
    pooled = dataclasses.replace(make_request("a", prompt(96)), max_tokens=1, pooling=PoolingParams())
    rig.add(pooled)
    with pytest.raises(ContextLengthError, match="the prompt has 97"):
        rig.add(dataclasses.replace(pooled, request_id="b", prompt_token_ids=tuple(prompt(97))))
    rig.run()
    assert rig.collected["a", 0].finish_reason == "stop"
