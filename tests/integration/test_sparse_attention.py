"""An engine whose tokens choose what they attend to: two pools of pages, contexts far beyond what is chosen, any company."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import save_file

from jaxengine.startup.build import Engine
from tests.device.models.cases import NUM_GREEDY, PROMPTS, Fixture
from tests.integration.engines import greedy, run, start, token_ids

pytestmark = [pytest.mark.usefixtures("quick_engines"), pytest.mark.slow]

FIXTURE = Fixture.load("deepseek-v3.2")
CHOSEN = FIXTURE.config["index_topk"]
LONG = [[3 + (17 * number + 5 * i) % 90 for i in range(length)] for number, length in enumerate((60, 41, 7))]


def engine(directory: Path, **options: Any) -> Engine:
    sizes = {"page_size": 4, "max_num_batched_tokens": 16, "max_num_seqs": 4, "buckets": ("4x4",)}
    return start(directory, load_format="auto", dtype="float32", **{**sizes, **options})


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    directory: Path = tmp_path_factory.mktemp("sparse")
    (directory / "config.json").write_text(json.dumps(FIXTURE.config))
    save_file(FIXTURE.tensors, directory / "model.safetensors")
    return directory


@pytest.fixture(scope="module")
def roomy(model) -> Iterator[Engine]:
    found = engine(model)
    yield found
    found.close()


def test_prompts_in_pieces_beside_others_give_transformers_tokens(roomy):
    assert len(PROMPTS[0]) + NUM_GREEDY > 10 * CHOSEN
    found = token_ids(run(roomy, PROMPTS, greedy(NUM_GREEDY)))
    assert [list(tokens) for tokens in found] == FIXTURE.greedy


def test_alone_and_in_company_are_the_same_to_the_last_bit(roomy):
    params = greedy(12).replace(logprobs=3)
    together = run(roomy, LONG, params)
    for prompt, expected in zip(LONG, together, strict=True):
        [alone] = run(roomy, [prompt], params)
        assert alone.outputs[0].token_ids == expected.outputs[0].token_ids
        assert alone.outputs[0].logprobs == expected.outputs[0].logprobs


def test_a_prefix_is_found_in_the_pool_of_keys_too(roomy):
    [first] = token_ids(run(roomy, [LONG[0]], greedy(12)))
    before = roomy.core.scheduler.stats.prefix_cache_hits
    [again] = token_ids(run(roomy, [LONG[0] + list(first[:6])], greedy(6)))
    assert again == first[6:]
    assert roomy.core.scheduler.stats.prefix_cache_hits >= before + len(LONG[0])


def test_preemption_changes_no_token(model, roomy):
    expected = token_ids(run(roomy, LONG, greedy(24)))
    tight = engine(model, num_pages=2 + 2 * 23, max_model_len=92)
    try:
        assert token_ids(run(tight, LONG, greedy(24))) == expected
        tight.ledger.check()
    finally:
        tight.close()
