"""Greedy output of a request never depends on its neighbours, its bucket, caching, chunking or preemption (DESIGN section 9)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jaxengine.contract.outputs import RequestOutput
from jaxengine.contract.sampling_params import SamplingParams
from jaxengine.startup.build import Engine
from tests.fakes import Distant
from tests.integration.engines import greedy, run, some_options, start, token_ids, write_config
from tests.quick import slow_but

MAX_TOKENS = 12
PREEMPTING = {"num_pages": 18, "max_model_len": 64}  # 17 pages of 8 tokens for four sequences of up to 62
VARIANTS = {
    "no prefix cache": {"enable_prefix_caching": False},
    "other buckets": {"buckets": ("2x8", "3x32", "2x1", "8x1"), "max_num_seqs": 8},
    "one row at a time": {"buckets": ("1x8", "1x1"), "max_num_seqs": 1},
    "one bucket": {"buckets": ("4x16",)},
    "without overlap": {"async_scheduling": False},
    "drafts": {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1}},
    "preempting": PREEMPTING,
    "at a distance": PREEMPTING,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return write_config(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def plain(model) -> Iterator[Engine]:
    engine = start(model)
    yield engine
    engine.close()


@pytest.fixture(scope="module", params=slow_but(VARIANTS, {"preempting"}))
def other(request, model) -> Iterator[Engine]:
    engine = start(model, **VARIANTS[request.param])
    if request.param == "at a distance":
        engine.core._runner = Distant(engine.core._runner)
    yield engine
    engine.close()


def alone(engine: Engine, prompts: list[list[int]]) -> list[tuple[int, ...]]:
    return [token_ids(run(engine, [prompt], greedy(MAX_TOKENS)))[0] for prompt in prompts]


def workload(seed: int) -> list[list[int]]:
    """Prompts of one to 50 tokens, of which some share a prefix."""
    rng = random.Random(seed)
    stem = [rng.randrange(3, 256) for _ in range(rng.randrange(1, 40))]
    fresh = [[rng.randrange(3, 256) for _ in range(rng.randrange(1, 50))] for _ in range(rng.randrange(1, 5))]
    return fresh + [stem + [rng.randrange(3, 256) for _ in range(rng.randrange(1, 10))] for _ in range(3)]


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 10**6))
def test_together_equals_alone(plain, seed):
    prompts = workload(seed)
    assert token_ids(run(plain, prompts, greedy(MAX_TOKENS))) == alone(plain, prompts)
    plain.ledger.check()


@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 10**6))
def test_every_way_of_running_gives_the_same_tokens(plain, other, seed):
    prompts = workload(seed)
    assert token_ids(run(other, prompts, greedy(MAX_TOKENS))) == token_ids(run(plain, prompts, greedy(MAX_TOKENS)))
    other.ledger.check()


@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 10**6))
def test_seeded_samples_are_the_same_in_every_way_of_running(plain, other, seed):
    rng = random.Random(seed)
    prompts = workload(seed)
    few = [None, rng.sample(range(3, 256), 3)]  # a text of three tokens repeats itself, as drafts need it
    params = [
        SamplingParams(
            **some_options(rng, share=0.4),
            allowed_token_ids=few[i % 2],
            seed=i,
            max_tokens=MAX_TOKENS,
            ignore_eos=True,
            detokenize=False,
        )
        for i in range(len(prompts))
    ]
    expected = token_ids(run(plain, prompts, params))
    assert token_ids(run(other, prompts, params)) == expected
    assert [
        token_ids(run(plain, [prompt], given))[0] for prompt, given in zip(prompts, params, strict=True)
    ] == expected


def test_the_small_pool_really_preempts(model):
    engine = start(model, **PREEMPTING)
    run(engine, [[7 + i] * 30 for i in range(4)], greedy(30))
    assert engine.core.scheduler.stats.num_preemptions > 0
    engine.close()


def test_seeded_samples_do_not_depend_on_neighbours(plain):
    rng = random.Random(5)
    params = SamplingParams(temperature=0.9, top_p=0.9, top_k=40, seed=11, max_tokens=MAX_TOKENS, detokenize=False)
    prompt = [rng.randrange(3, 256) for _ in range(20)]
    [expected] = token_ids(run(plain, [prompt], params))
    neighbours = [[rng.randrange(3, 256) for _ in range(rng.randrange(1, 40))] for _ in range(6)]
    others = SamplingParams(
        temperature=1.3, max_tokens=MAX_TOKENS, repetition_penalty=1.2, logprobs=3, detokenize=False
    )
    outputs = run(plain, [*neighbours[:3], prompt, *neighbours[3:]], [others] * 3 + [params] + [others] * 3)
    assert token_ids(outputs)[3] == expected


def test_samples_of_one_request_differ_and_share_its_prompt(plain):
    params = SamplingParams(n=3, temperature=1.0, seed=3, max_tokens=MAX_TOKENS, ignore_eos=True, detokenize=False)
    [output] = run(plain, [list(range(3, 23))], params)
    samples = [completion.token_ids for completion in output.outputs]
    assert [completion.index for completion in output.outputs] == [0, 1, 2]
    assert len(set(samples)) == 3
    for index, sample in enumerate(samples):
        [single] = run(plain, [list(range(3, 23))], params.replace(n=1, seed=3 + index))
        assert single.outputs[0].token_ids == sample
    plain.ledger.check()


def test_log_probabilities_are_equal_to_the_last_bit(plain):
    """What the CPU programs promise beyond equal tokens: a row's numbers do not depend on the rows beside it."""
    params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, logprobs=3, detokenize=False)

    def bits(output: RequestOutput) -> list[list[tuple[int, str]]]:
        positions = output.outputs[0].logprobs or []
        return [[(token, entry.logprob.hex()) for token, entry in position.items()] for position in positions]

    prompts = workload(77)
    plain.ledger.reset_prefix_cache()
    together = [bits(output) for output in run(plain, prompts, params)]
    plain.ledger.reset_prefix_cache()
    assert [bits(run(plain, [prompt], params)[0]) for prompt in prompts] == together
