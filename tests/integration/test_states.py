"""A model that keeps a state of each sequence: the same tokens in any company, and what cannot be is refused."""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors.numpy import save_file

from jaxengine.contract.sampling_params import SamplingParams
from jaxengine.errors import ConfigError
from jaxengine.startup.build import Engine
from tests.device.models.cases import VOCAB, Fixture
from tests.integration.engines import greedy, run, start, token_ids
from tests.integration.test_deterministic import bits
from tests.quick import slow_but

pytestmark = pytest.mark.usefixtures("quick_engines")


@pytest.fixture(
    scope="module", params=slow_but(("lfm2", "granite-hybrid", "qwen3-next"), {"lfm2"}, often={"qwen3-next"})
)
def model(request, tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp(request.param)
    fixture = Fixture.load(request.param)
    (directory / "config.json").write_text(json.dumps(fixture.config))
    save_file(fixture.tensors, directory / "model.safetensors")
    return directory


def begin(model: Path, **options: object) -> Engine:
    return start(model, load_format="auto", dtype="float32", **options)


@pytest.fixture(scope="module")
def plain(model) -> Iterator[Engine]:
    engine = begin(model)
    yield engine
    engine.close()


def prompts() -> list[list[int]]:
    rng = random.Random(1)
    stem = [rng.randrange(3, VOCAB) for _ in range(30)]
    return [stem + [rng.randrange(3, VOCAB)] * size for size in (1, 4, 9)] + [[5], stem[:20], stem * 2]


@pytest.fixture(scope="module")
def expected(plain) -> list[tuple[int, ...]]:
    """The tokens of each prompt alone."""
    return [token_ids(run(plain, [prompt], greedy(24)))[0] for prompt in prompts()]


def test_together_equals_alone(plain, expected):
    assert token_ids(run(plain, prompts(), greedy(24))) == expected
    plain.ledger.check()


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"num_pages": 18, "max_model_len": 96},
        pytest.param({"buckets": ("2x8", "3x32", "2x1", "8x1"), "max_num_seqs": 8}, marks=pytest.mark.slow),
        {"async_scheduling": False},
    ],
    ids=["preempting", "other buckets", "without overlap"],
)
def test_every_way_of_running_gives_the_same_tokens(model, expected, options):
    engine = begin(model, **options)
    assert token_ids(run(engine, prompts(), greedy(24))) == expected
    if "num_pages" in options:
        assert engine.core.scheduler.stats.num_preemptions > 0
    engine.ledger.check()
    engine.close()


def test_prompts_go_on_from_what_others_began_with(model, expected):
    """Greedy tokens are those of a prompt alone, though its states are of rows that ended elsewhere."""
    engine = begin(model, mamba_block_size=8, num_snapshots=6)
    assert token_ids(run(engine, prompts(), greedy(24))) == expected
    again = [run(engine, [prompt], greedy(24))[0] for prompt in prompts()]
    assert token_ids(again) == expected
    cached = [output.num_cached_tokens for output in again]
    assert [found % 8 for found in cached] == [0] * 6
    assert sorted(found > 0 for found in cached) == [False, *[True] * 5]
    assert engine.core.scheduler.stats.prefix_cache_hits >= sum(cached)
    assert engine.compile_counter.count == 0
    engine.core.check_idle()
    engine.close()


def test_samples_of_one_request_share_its_prompt(model, plain):
    engine = begin(model, mamba_block_size=8, num_snapshots=2)
    params = SamplingParams(n=3, temperature=1.0, seed=3, max_tokens=12, ignore_eos=True, detokenize=False)
    (alone,), (shared,) = (run(each, [list(range(3, 23))], params) for each in (plain, engine))
    assert [one.token_ids for one in alone.outputs] == [one.token_ids for one in shared.outputs]
    assert engine.core.scheduler.stats.prefix_cache_hits == 2 * 16
    engine.close()


def test_samples_of_one_request_are_those_of_its_seeds(plain):
    params = SamplingParams(n=3, temperature=1.0, seed=3, max_tokens=12, ignore_eos=True, detokenize=False)
    [output] = run(plain, [list(range(3, 23))], params)
    samples = [completion.token_ids for completion in output.outputs]
    assert len(set(samples)) == 3
    for index, sample in enumerate(samples):
        [single] = run(plain, [list(range(3, 23))], params.replace(n=1, seed=3 + index))
        assert single.outputs[0].token_ids == sample
    plain.ledger.check()


def test_without_snapshots_no_prefix_is_shared_and_the_log_says_so(model, caplog):
    with caplog.at_level(logging.INFO, logger="jaxengine"):
        engine = begin(model, mamba_cache_mode="none")
    assert any("prefix caching is off" in record.message for record in caplog.records)
    prompt = list(range(3, 40))
    first, second = (run(engine, [prompt], greedy(4))[0] for _ in range(2))
    assert first.outputs[0].token_ids == second.outputs[0].token_ids
    assert not second.num_cached_tokens
    engine.close()


def test_drafts_would_have_to_be_taken_back_and_are_refused(model):
    with pytest.raises(ConfigError, match="speculative_config is not built for models that keep a state"):
        begin(model, speculative_config={"method": "ngram", "num_speculative_tokens": 2})


@pytest.mark.slow
def test_deterministic_mode_holds_to_the_last_bit(model):
    """Prompts that are cut or begin from a snapshot, sequences that are preempted: chunks always begin at the same tokens."""
    engine = begin(
        model,
        deterministic=True,
        max_model_len=320,
        hf_overrides={"max_position_embeddings": 320},
        num_pages=60,
        bucket_planner="tokens",
        buckets=None,
    )
    rng = random.Random(2)
    cases = [[rng.randrange(3, VOCAB) for _ in range(size)] for size in (1, 290, 129, 7, 257, 200, 2)]
    params = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True, logprobs=2, detokenize=False)
    together = [bits(output) for output in run(engine, cases, params)]
    assert engine.core.scheduler.stats.num_preemptions > 0
    assert together == [bits(run(engine, [case], params)[0]) for case in cases]
    again = [run(engine, [cases[1]], params)[0] for _ in range(2)]
    assert [bits(output) for output in again] == [together[1]] * 2
    assert again[1].num_cached_tokens == 256
    assert engine.compile_counter.count == 0
    engine.core.check_idle()
    engine.close()
