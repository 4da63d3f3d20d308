"""A model with windows runs in memory that only its windows fit, and says what it says with room for everything."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from jaxengine.startup.build import Engine
from tests.device.models.cases import Fixture
from tests.integration.engines import SMALL, greedy, run, start, token_ids

pytestmark = pytest.mark.usefixtures("quick_engines")

PAGE, STEP, WINDOW, OUTPUT = 4, 16, 7, 24
PROMPTS = [[3 + (17 * number + 5 * i) % 90 for i in range(length)] for number, length in enumerate((90, 60, 3, 75))]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """Gemma 3 with three layers: two see a window, one everything."""
    directory = tmp_path_factory.mktemp("gemma3")
    config = Fixture.load("gemma3-biases-untied-linear").config
    assert config["sliding_window"] == WINDOW
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def engine(model: Path, **options: object) -> Engine:
    sizes = {"page_size": PAGE, "max_num_batched_tokens": STEP, "buckets": ("4x4", "4x1"), "dtype": "float32"}
    return start(model, **{**SMALL, **sizes, **options})


@pytest.fixture(scope="module")
def roomy(model) -> Iterator[Engine]:
    found = engine(model)
    yield found
    found.close()


@pytest.mark.slow
def test_windows_give_back_what_they_do_not_see(model, roomy):
    expected = token_ids(run(roomy, PROMPTS, greedy(OUTPUT)))
    # the longest sequence there may be: 128 tokens in the layer that sees everything, 7 - 1 + 16 in the others, begun anywhere
    tight = engine(model, num_pages=1 + 32 + 2 * 7)
    try:
        assert roomy.ledger.pools.num_pages > len(PROMPTS) * 46, "the other engine has room for all of them at once"
        assert token_ids(run(tight, PROMPTS, greedy(OUTPUT))) == expected
        assert [token_ids(run(tight, [prompt], greedy(OUTPUT)))[0] for prompt in PROMPTS] == expected
        tight.core.check_idle()
    finally:
        tight.close()


@pytest.mark.slow
def test_what_lies_before_a_window_is_found_again(model, roomy):
    """A prompt that goes on from another one: the window's pages that its next token sees are still in the cache."""
    again = [*PROMPTS[0][:80], 9, 8, 7]
    before = roomy.core.scheduler.stats.prefix_cache_hits
    first = token_ids(run(roomy, [PROMPTS[0]], greedy(OUTPUT)))
    assert token_ids(run(roomy, [PROMPTS[0]], greedy(OUTPUT))) == first
    assert roomy.core.scheduler.stats.prefix_cache_hits > before
    cached = token_ids(run(roomy, [again], greedy(OUTPUT)))
    fresh = engine(model, enable_prefix_caching=False)
    try:
        assert token_ids(run(fresh, [again], greedy(OUTPUT))) == cached
    finally:
        fresh.close()
