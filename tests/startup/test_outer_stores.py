"""Which engines find each other's pages: those that would compute the same bytes for them, and no others."""

from __future__ import annotations

import pytest

from jaxengine.options.config import EngineConfig
from jaxengine.startup.outer_stores import namespace
from jaxengine.startup.pool import plan_space
from jaxengine.startup.prepare import prepare
from jaxengine.startup.progress import Progress
from tests.integration.engines import SMALL, write_config

WEIGHTS = bytes(32)


@pytest.fixture(scope="module")
def name(tmp_path_factory):
    def name(weights=WEIGHTS, config=None, **options):
        model = write_config(tmp_path_factory.mktemp("model"), **(config or {}))
        options = {**SMALL, "kv_offloading_size": 0.001, "num_pages": 65, **options}
        prepared = prepare(EngineConfig.from_options(model=str(model), **options), Progress())
        return namespace(prepared.model, plan_space(prepared).space, weights)

    return name


@pytest.fixture(scope="module")
def own(name):
    return name()


@pytest.mark.parametrize(
    "options",
    [
        {"max_num_seqs": 2, "buckets": ("2x16", "2x1")},
        {"num_pages": 100},
        {"kv_offloading_size": 0.002},
        {"max_num_batched_tokens": 32, "buckets": ("4x8", "4x1")},
    ],
    ids=str,
)
def test_how_much_runs_at_once_is_no_reason_to_compute_again(name, own, options):
    assert name(**options) == own


@pytest.mark.parametrize(
    "options",
    [
        {"weights": bytes(31) + b"1"},
        {"config": {"rope_theta": 20000.0}},
        {"config": {"num_hidden_layers": 3}},
        {"dtype": "bfloat16"},
        {"kv_cache_dtype": "bfloat16"},
        {"kv_cache_dtype": "int8"},
        {"page_size": 16},
        {"attention_backend": "xla"},
    ],
    ids=lambda options: " ".join(options),
)
def test_whatever_changes_a_page_s_bytes_makes_it_another(name, own, options):
    assert name(**options) != own
