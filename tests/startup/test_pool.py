"""The KV pool takes what the weights and the workspace leave, and is measured only where that can matter."""

from __future__ import annotations

import dataclasses

import pytest

from jaxengine.device.runtime.target import DEFAULTS
from jaxengine.errors import CapacityError
from jaxengine.options.config import EngineConfig
from jaxengine.startup import pool
from jaxengine.startup.prepare import prepare
from jaxengine.startup.progress import Progress
from tests.integration.engines import SMALL, write_config

PAGE = 8 * 2 * 4 * 8 * 4 * 2
"""Bytes of a page of 8 tokens: keys and values of 4 heads of 8 in float32, in 2 layers."""

SLOTS = 5 * 4 * (1 + 13 + 2 * 1024 + 8 + 256) + 4 * 4 * 256
"""Bytes of 5 slots: the last token, 13 settings, 1,024 token ids and biases, a mask and a count of 256 tokens; and of 4 rows of
logits."""


@pytest.fixture
def plan(tmp_path, monkeypatch):
    def plan(free_pages: int, **options):
        """The plan on a device that has room for so many pages beside weights and slots."""
        config = EngineConfig.from_options(
            model=str(write_config(tmp_path)), **{**SMALL, "memory_utilization": 1.0, **options}
        )
        prepared = prepare(config, Progress())
        used = 4 * prepared.model.num_parameters + SLOTS
        prepared = dataclasses.replace(prepared, device_bytes=used + free_pages * PAGE)
        return pool.plan_space(prepared)

    return plan


@pytest.fixture
def workspace(monkeypatch):
    """A stand-in for the figures of the compiler: the size of ten pages, whatever the pool."""
    monkeypatch.setattr(pool, "measured_workspace", lambda num_pages, *rest: (10 * PAGE, {}))


def test_with_room_for_all_that_can_be_used_nothing_is_compiled(plan, monkeypatch):
    monkeypatch.setattr(pool, "measured_workspace", lambda *arguments: pytest.fail("nothing had to be measured"))
    found = plan(10_000)
    assert found.space.num_pages == (4 * 16 + 1,)
    assert found.workspace == "unneeded"


def test_all_that_the_workspace_leaves_is_used(plan, workspace):
    found = plan(60)
    assert found.workspace == "measured"
    assert found.space.num_pages == (50,)


@pytest.mark.parametrize(("unused", "kept"), [(-1, False), (0, True), (2 * PAGE, True), (9 * PAGE, False)])
def test_a_pool_that_was_estimated_stays_if_the_estimate_was_about_right(plan, monkeypatch, unused, kept):
    """30 pages are expected to be workspace. One thirty-second of the device may lie idle: between two and three pages here."""
    monkeypatch.setattr(pool, "expected_workspace", lambda space, model: 30 * PAGE)
    trials = []

    def measure(space, *rest):
        trials.append(sum(space.num_pages))
        return 30 * PAGE - unused, {}

    monkeypatch.setattr(pool, "measured_workspace", measure)
    found = plan(60)
    assert trials[0] == 30
    assert found.space.num_pages == (30 if kept else 30 + unused // PAGE,)


def test_what_can_never_fit_is_refused_before_anything_is_compiled(plan, monkeypatch):
    monkeypatch.setattr(pool, "measured_workspace", lambda *arguments: pytest.fail("compiled in vain"))
    with pytest.raises(CapacityError, match="does not fit"):
        plan(10)
    with pytest.raises(CapacityError, match="does not fit"):
        plan(-5)


@pytest.mark.parametrize(
    ("free_pages", "options", "context", "option"),
    [
        (10_000, {}, 256, "max_model_len"),  # the model's
        (32, {}, 168, "memory_utilization"),  # ten pages are workspace, one is the sink
        (10_000, {"num_pages": 13}, 96, "num_pages"),
        (10_000, {"kv_cache_memory_bytes": 5 * PAGE}, 32, "kv_cache_memory_bytes"),
        (10_000, {"max_model_len": "auto", "num_pages": 13}, 96, "num_pages"),
        (10_000, {"num_pages": 1000}, 256, "max_model_len"),
    ],
)
def test_an_open_context_is_what_the_pool_holds(plan, workspace, caplog, free_pages, options, context, option):
    caplog.set_level("INFO", "jaxengine")
    found = plan(free_pages, **{"max_model_len": None, **options})
    assert found.limits.max_model_len == found.space.max_model_len == context
    assert found.limits.context_option == option
    told = f"context bounded by {'memory' if option == 'memory_utilization' else option} to {context} of the model's 256 tokens"
    assert (told in caplog.text) is (context < 256)


def test_an_open_context_of_a_cpu_takes_no_more_than_its_share(plan, workspace, monkeypatch):
    monkeypatch.setitem(DEFAULTS, "cpu", dataclasses.replace(DEFAULTS["cpu"], max_kv_bytes=11 * PAGE))
    bounded = plan(10_000, max_model_len=None).limits
    assert (bounded.max_model_len, bounded.context_option) == (80, "max_model_len"), "which alone goes beyond"
    assert plan(10_000, max_model_len="auto").limits.max_model_len == 256
