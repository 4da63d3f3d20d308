"""Requests that can never run are refused at once, with the numbers, and nothing else changes."""

from __future__ import annotations

import dataclasses

import pytest

from jaxengine.contract.pooling import Pooled
from jaxengine.errors import ContextLengthError, RequestError
from tests.harness import EOS, Rig, make_request


def prompt(length: int, start: int = 1) -> list[int]:
    return [(start + 7 * i) % EOS for i in range(length)]


def test_a_prompt_larger_than_the_pool() -> None:
    with pytest.raises(ContextLengthError, match="has 40 input tokens, and the KV cache holds 36 tokens"):
        Rig(num_pages=10).add(make_request("a", prompt(40)))


def test_a_prompt_that_just_fits_the_pool_yields_one_token() -> None:
    rig = Rig(num_pages=10)
    rig.add(make_request("a", prompt(36)))
    rig.run()
    rig.assert_oracle()
    assert len(rig.collected["a", 0].tokens) == 1


def test_a_priority_where_there_are_none_is_refused_and_nothing_changes() -> None:
    rig = Rig()
    with pytest.raises(RequestError, match="priority 1 has no effect under scheduling_policy='fcfs'"):
        rig.add(make_request("a", prompt(3), priority=1))
    assert not rig.scheduler.has_unfinished
    rig.add(make_request("a", prompt(3)))


def test_an_id_in_use() -> None:
    rig = Rig()
    rig.add(make_request("a", prompt(3)))
    with pytest.raises(RequestError, match="'a' is in use"):
        rig.add(make_request("a", prompt(4)))
    rig.run()
    rig.assert_oracle()


def test_a_prompt_that_is_pooled_needs_no_room_for_output() -> None:
    rig = Rig(num_pages=10)
    pooled = dataclasses.replace(make_request("a", prompt(36)), max_tokens=1, pooling=Pooled(task="embed"))
    rig.add(pooled)
    with pytest.raises(ContextLengthError, match="has 37 input tokens"):
        rig.add(dataclasses.replace(pooled, request_id="b", prompt_token_ids=tuple(prompt(37))))
    rig.run()
    assert rig.collected["a", 0].finish_reason == "stop"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"max_num_seqs": 1}, "max_num_seqs"),
        ({"num_pages": 12}, "kv_cache"),
        ({"max_num_batched_tokens": 8}, "max_num_batched_tokens"),
    ],
)
def test_it_is_told_what_kept_a_request_waiting(options: dict[str, int], reason: str) -> None:
    rig = Rig(**options)
    first, second = make_request("a", prompt(24)), make_request("b", prompt(24, start=2))
    rig.add(first)
    rig.add(second)
    told = {}
    while (batch := rig.scheduler.schedule()) is not None:
        updates = rig.scheduler.commit(batch, rig.runner.launch(batch).wait())
        told |= {update.request_id: update.admission.waited_for for update in updates}
    assert told == {"a": None, "b": reason}
