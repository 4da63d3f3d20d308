"""A model whose layers keep heads of two shapes runs in two pools: memory is divided for it, and either may run out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors.numpy import save_file

from jaxengine.contract.sampling_params import SamplingParams
from jaxengine.errors import CapacityError
from jaxengine.options.config import EngineConfig
from jaxengine.startup.build import Engine
from jaxengine.tools.plan import plan_engine
from jaxengine.tools.plan_report import lines
from tests.device.models import two_shapes
from tests.integration.engines import SMALL, greedy, run, start, token_ids
from tests.quick import slow_but

pytestmark = pytest.mark.usefixtures("quick_engines")

PAGE, STEP, OUTPUT = 4, 16, 24
NEEDS = (32, 6)
"""Pages of the longest sequence: 128 tokens where layers see everything, elsewhere 6 - 1 + 16 and begun anywhere."""
SIZES = {"page_size": PAGE, "max_num_batched_tokens": STEP, "buckets": ("4x4", "4x1")}
PROMPTS = [[3 + (17 * number + 5 * i) % 90 for i in range(length)] for number, length in enumerate((90, 60, 3, 75))]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Iterator[Path]:
    directory = tmp_path_factory.mktemp("two-shapes")
    (directory / "config.json").write_text(json.dumps(two_shapes.CONFIG))
    save_file(two_shapes.tensors(), directory / "model.safetensors")
    with two_shapes.known():
        yield directory


def engine(model: Path, **options: object) -> Engine:
    return start(model, **{**SMALL, **SIZES, "load_format": "auto", **options})


@pytest.fixture(scope="module")
def roomy(model) -> Iterator[Engine]:
    found = engine(model)
    yield found
    found.close()


@pytest.fixture(scope="module")
def expected(roomy) -> list[tuple[int, ...]]:
    return token_ids(run(roomy, PROMPTS, greedy(OUTPUT)))


@pytest.mark.slow
def test_tokens_are_those_of_the_pass_written_out(expected):
    weights = two_shapes.tensors()
    for prompt, answer in zip(PROMPTS[1:3], expected[1:3], strict=True):
        tokens = list(prompt)
        for token in answer[:8]:
            assert token == two_shapes.dense_logprobs(tokens, weights)[-1].argmax()
            tokens.append(token)


@pytest.mark.slow
@pytest.mark.parametrize("sequences", slow_but([1, 2], {1}))
def test_with_few_pages_the_answers_are_the_same(model, roomy, expected, sequences):
    tight = engine(model, num_pages=2 + sequences * sum(NEEDS))
    try:
        assert tight.ledger.pools.num_available == tuple(sequences * need for need in NEEDS)
        assert tight.host.facts.kv_tokens == sequences * 128
        assert token_ids(run(tight, PROMPTS, greedy(OUTPUT))) == expected
        again = [[*PROMPTS[0][:80], 9, 8, 7], *PROMPTS]
        assert token_ids(run(tight, again, greedy(OUTPUT))) == token_ids(run(roomy, again, greedy(OUTPUT)))
        tight.core.check_idle()
        tight.ledger.check()
    finally:
        tight.close()


@pytest.mark.slow
def test_a_prefix_is_found_in_both_pools(roomy, expected):
    run(roomy, [PROMPTS[0]], greedy(1))
    before = roomy.core.scheduler.stats.prefix_cache_hits
    assert token_ids(run(roomy, [PROMPTS[0]], greedy(OUTPUT))) == expected[:1]
    assert roomy.core.scheduler.stats.prefix_cache_hits == before + 88, "all of its full pages"


@pytest.mark.slow
def test_samples_of_one_prompt_part_in_pages_of_both_pools(roomy):
    """The page in which they part is copied, and what each finds there is what it would have computed alone."""
    params = SamplingParams(n=3, temperature=1.0, seed=3, max_tokens=OUTPUT, ignore_eos=True, detokenize=False)
    [together] = run(roomy, [PROMPTS[3]], params)
    for index, output in enumerate(together.outputs):
        [alone] = run(roomy, [PROMPTS[3]], params.replace(n=1, seed=3 + index))
        assert output.token_ids == alone.outputs[0].token_ids


def test_too_few_pages_are_refused_with_what_would_do(model):
    with pytest.raises(CapacityError, match=rf"needs {sum(NEEDS)}\. .*\(--num-pages {2 + sum(NEEDS)}\)"):
        engine(model, num_pages=1 + sum(NEEDS))


def test_a_plan_has_a_line_for_each_pool(model):
    options = {name: value for name, value in SMALL.items() if name not in ("load_format", "skip_tokenizer_init")}
    plan = plan_engine(EngineConfig.from_options(model=str(model / "config.json"), **{**options, **SIZES}), "cpu")
    # of 4 tokens in float32: keys and values of 2 heads of 16 in 2 layers, of 4 heads of 8 in 4 layers
    assert [pool.page_bytes for pool in plan.pools] == [4 * 2 * 2 * 16 * 2 * 4, 4 * 2 * 4 * 8 * 4 * 4]
    assert [pool.num_pages for pool in plan.pools] == [1 + 4 * need for need in NEEDS]
    assert plan.kv_bytes == sum(pool.num_pages * pool.page_bytes for pool in plan.pools)
    assert plan.kv_tokens == 4 * 128
    text = "\n".join(lines(plan))
    assert "pool 0: 128 pages of 2,048 bytes for layers with 2 heads of 16, of which such a sequence takes 32" in text
    assert "pool 1: 24 pages of 4,096 bytes for layers with 4 heads of 8, of which such a sequence takes 6" in text
    assert plan.to_json()["num_pages"] == 2 + 4 * sum(NEEDS)
