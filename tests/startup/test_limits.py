"""Open options are resolved by the platform and the model; contradictions name both numbers."""

from __future__ import annotations

import logging

import pytest

from jaxengine.device.runtime.target import PlatformDefaults
from jaxengine.errors import ConfigError
from jaxengine.options.config import EngineConfig
from jaxengine.startup.limits import EngineLimits

DEFAULTS = PlatformDefaults(page_size=32, max_num_seqs=64, max_num_batched_tokens=512)


def resolve(model_max_len: int = 4096, **options: object) -> EngineLimits:
    return EngineLimits.resolve(EngineConfig.from_options(**options), model_max_len=model_max_len, defaults=DEFAULTS)


def test_defaults_of_the_platform():
    limits = resolve()
    assert (limits.max_model_len, limits.max_num_seqs, limits.max_num_batched_tokens, limits.page_size) == (
        4096,
        64,
        512,
        32,
    )


@pytest.mark.parametrize(
    ("asked", "model", "expected"),
    [
        (None, 40960, 40960),
        (None, 1_000_000, 131072),
        (None, 1024, 1024),
        ("2k", 4096, 2000),
        ("2K", 4096, 2048),
        (77, 4096, 77),
        ("auto", 131072, 131072),
    ],
)
def test_context(asked, model, expected):
    assert resolve(model, max_model_len=asked).max_model_len == expected


def test_auto_context_may_shrink():
    assert resolve(max_model_len="auto").fit_context
    assert resolve(max_model_len=-1).fit_context
    assert resolve().fit_context
    assert not resolve(max_model_len=4096).fit_context


def test_a_page_is_never_longer_than_the_context():
    assert resolve(20).page_size == 16


def test_the_budget_grows_with_the_sequences():
    assert resolve(max_num_seqs=1000).max_num_batched_tokens == 1000


@pytest.mark.parametrize(
    ("options", "sequences"),
    [
        ({"max_num_batched_tokens": 32}, 32),
        ({"max_num_batched_tokens": 4096}, 64),
        ({"bucket_planner": "explicit", "buckets": ("4x128", "8x1")}, 8),
        ({"bucket_planner": "explicit", "buckets": ("4x128", "8x1"), "max_num_seqs": 3}, 3),
        ({"bucket_planner": "explicit", "buckets": ("4x128", "oops")}, 64),
        ({"bucket_planner": "explicit"}, 64),
    ],
)
def test_sequences_follow_what_they_have_to_fit_into(options, sequences):
    assert resolve(**options).max_num_seqs == sequences


def test_a_bounded_context_is_told(caplog):
    caplog.set_level(logging.INFO, "jaxengine")
    resolve(1_000_000)
    assert "context bounded to 131072 of the model's 1000000 tokens; --max-model-len 1000000" in caplog.text
    caplog.clear()
    resolve(1_000_000, max_model_len=9000)
    resolve(1024)
    assert not caplog.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_model_len": 5000}, "5000.*4096"),
        ({"max_model_len": 1}, "at least 2"),
        ({"max_model_len": "many"}, "'many'"),
        ({"max_num_batched_tokens": 8, "max_num_seqs": 9}, r"\(8\).*\(9\)"),
        ({"page_size": 24}, "24"),
    ],
)
def test_contradictions(options, message):
    with pytest.raises(ConfigError, match=message):
        resolve(**options)


@pytest.mark.parametrize(("asked", "length"), [(None, 256), ("auto", 256), (400, 400), (100, 100)])
def test_the_length_that_files_say_is_usual_bounds_what_nobody_asked_for(asked, length):
    options = {} if asked is None else {"max_model_len": asked}
    config = EngineConfig.from_options(model="x", **options)
    limits = EngineLimits.resolve(config, model_max_len=512, defaults=DEFAULTS, whole_prompts=True, usual_len=256)
    assert limits.max_model_len == length


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"max_num_batched_tokens": 128}, "max_num_batched_tokens"),
        ({"max_num_batched_tokens": 128, "max_model_len": 100}, "max_model_len"),
        ({"max_num_batched_tokens": 1024}, "max_model_len"),
        ({}, "max_model_len"),
    ],
    ids=str,
)
def test_which_option_a_longer_context_of_whole_prompts_takes(options, option):
    config = EngineConfig.from_options(model="x", max_num_seqs=4, **options)
    limits = EngineLimits.resolve(config, model_max_len=512, defaults=DEFAULTS, whole_prompts=True)
    assert limits.context_option == option


def test_a_context_is_shorter_because_of_an_option_and_no_longer_one_is():
    limits = resolve(512)
    assert limits.with_context(64, option="num_pages").context_option == "num_pages"
    assert limits.with_context(512, option="num_pages").context_option == "max_model_len"
    shorter = limits.with_context(64, option="num_pages").with_context(32, option="memory_utilization")
    assert (shorter.max_model_len, shorter.context_option) == (32, "memory_utilization")
