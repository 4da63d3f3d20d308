"""Replicas are told who they are, come out alike or not at all, and are chosen by what they hold."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

from jaxengine.contract.facts import EngineFacts
from jaxengine.contract.messages import Begin
from jaxengine.errors import ConfigError
from jaxengine.front.dispatcher import least_loaded
from jaxengine.front.replicas import begin_of, supervised
from jaxengine.front.router import Router
from jaxengine.front.supervisor import Supervisor
from jaxengine.options.config import EngineConfig
from tests.harness import make_request


class Started:
    """An engine that is ready."""

    def __init__(self, **facts: Any) -> None:
        values = {"vocab_size": 100, "max_model_len": 64, "page_size": 8, "num_pages": 20}
        self.facts = EngineFacts(**{**values, **facts})
        self.ready: Future[EngineFacts] = Future()
        self.ready.set_result(self.facts)


def over(*engines: Started) -> Supervisor:
    return supervised(engines, lambda index: engines[index])  # type: ignore[arg-type, return-value]


def test_each_process_is_told_its_rank() -> None:
    begin = Begin(config=EngineConfig.from_options(dp=3), log_layout="json")
    ranks = [begin_of(begin, index).config.parallel.data_parallel_rank for index in range(3)]
    assert ranks == [0, 1, 2]
    assert begin_of(begin, 1).log_layout == "json"
    begin_of(begin, 1).config.parallel.check_alone()
    alone = Begin(config=EngineConfig.from_options(dp=3, data_parallel_rank=2))
    assert begin_of(alone, 0).config.parallel.data_parallel_rank == 2
    assert begin_of(Begin(config=EngineConfig()), 0) == Begin(config=EngineConfig())


def test_replicas_of_unlike_devices_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"different max_model_len \(64, 32\).*Choose max_model_len"):
        over(Started(), Started(max_model_len=32))
    assert over(Started(), Started(num_pages=99)).facts.max_model_len == 64


def test_prompts_go_where_their_beginnings_are_if_those_are_kept() -> None:
    prompt = make_request("a", range(40))
    for facts, chosen in (({}, 1), ({"caches_prefixes": False}, 0)):
        supervisor = over(Started(**facts), Started(**facts))
        choose = supervisor._dispatcher._choose
        assert choose(prompt, {0: 10, 1: 5}) == 1
        assert choose(prompt, {0: 5, 1: 10}) == chosen
    assert over(Started())._dispatcher._choose is least_loaded


def test_a_start_that_fails_is_told() -> None:
    failed = Started()
    failed.ready = Future()
    failed.ready.set_exception(ConfigError("no such device"))
    with pytest.raises(ConfigError, match="no such device"):
        over(Started(), failed)


def test_the_smallest_cache_bounds_what_is_remembered() -> None:
    supervisor = over(Started(), Started(num_pages=3))
    choose = supervisor._dispatcher._choose
    router: Router = choose.__self__  # type: ignore[attr-defined]
    choose(make_request("a", range(64)), {0: 0, 1: 0})
    assert [len(held) for held in router._held.values()] == [3]
