"""Overlap and drafts change when things happen and never what: the same tokens and log probabilities, to the last bit."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from jaxengine.contract.outputs import RequestOutput
from jaxengine.contract.sampling_params import SamplingParams
from jaxengine.contract.structured_outputs import StructuredOutputsParams
from jaxengine.options.config import EngineConfig
from jaxengine.startup.build import Engine, build_engine
from tests.integration.engines import synchronous
from tests.quick import rare_but

OPTIONS: dict[str, Any] = {
    "max_model_len": 96,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 48,
    "page_size": 8,
    "num_pages": 16,  # too few for eight sequences: some are preempted
    "bucket_planner": "explicit",
    "buckets": ("2x1", "8x1", "8x6"),
    "dtype": "float32",
}
DRAFTS = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3, "prompt_lookup_min": 1}
WORDS = ["once", "upon", "a", "time", "the", "fox", "the", "fox", "2", "+", "2", "said", "said", "and", "and"]


def random_request(rng: random.Random) -> tuple[str, SamplingParams]:
    prompt = " ".join(rng.choices(WORDS, k=rng.randrange(1, 24)))
    options: dict[str, Any] = {"max_tokens": rng.randrange(1, 20), "temperature": rng.choice([0.0, 0.0, 0.9])}
    choices: dict[str, Any] = {
        "top_k": 20,
        "seed": rng.randrange(99),
        "frequency_penalty": 0.5,
        "logprobs": 2,
        "prompt_logprobs": 1,
        "stop": ["the", "."],
        "stop_token_ids": [rng.randrange(200, 400) for _ in range(20)],
        "min_tokens": 1,
        "bad_words": ["and so", "the"],
        "logit_bias": {rng.randrange(200, 400): 5.0},
        "structured_outputs": StructuredOutputsParams(regex="(the|a) (fox|cat)( said)*"),
    }
    options |= {name: choices[name] for name in rng.sample(sorted(choices), rng.choice([0, 0, 1, 2, 3]))}
    options["n"] = rng.choice([1, 1, 1, 3]) if options["temperature"] else 1
    return prompt, SamplingParams(**options)


def play(
    engine: Engine,
    *,
    seed: int,
    count: int,
    make: Callable[[random.Random], tuple[str, SamplingParams]] = random_request,
) -> tuple[dict[int, RequestOutput], set[int]]:
    """Run the first `count` requests of `seed`, twelve at a time: the last output of each by number, and which were aborted."""
    rng = random.Random(seed)
    waiting = list(enumerate(make(rng) for _ in range(count)))[::-1]
    numbers: dict[str, int] = {}
    last: dict[int, RequestOutput] = {}
    aborted: set[int] = set()
    sync = synchronous(engine)
    while waiting or numbers:
        while waiting and len(numbers) < 12:
            number, (prompt, params) = waiting.pop()
            [request] = engine.front.intake.prepare([prompt], [params])
            sync.submit([request])
            numbers[request.request_id] = number
        for output in sync.step():
            last[numbers[output.request_id]] = output
            if output.finished:
                del numbers[output.request_id]
        if numbers and rng.random() < 0.02:
            request_id = rng.choice(sorted(numbers))
            sync.abort([request_id])
            aborted.add(numbers.pop(request_id))
    engine.core.check_idle()
    return last, aborted


def bits(output: RequestOutput) -> list[Any]:
    """All that a caller sees, floats to the last bit."""
    return [
        (
            completion.index,
            completion.text,
            completion.token_ids,
            completion.finish_reason,
            completion.stop_reason,
            [
                [(token, entry.logprob.hex(), entry.rank) for token, entry in at.items()]
                for at in completion.logprobs or ()
            ],
        )
        for completion in output.outputs
    ] + [[(token, entry.logprob.hex()) for token, entry in (at or {}).items()] for at in output.prompt_logprobs or ()]


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, marks=pytest.mark.rare),
        {"speculative_config": DRAFTS},
        pytest.param({"speculative_config": DRAFTS, "async_scheduling": False}, marks=pytest.mark.rare),
    ],
)
@pytest.mark.parametrize("count", rare_but([50, 1000], {50}))
def test_random_requests_are_answered_as_one_step_at_a_time(options: dict[str, Any], count: int) -> None:
    answers = []
    for given in ({"async_scheduling": False}, options):
        engine = build_engine(EngineConfig.from_options(**OPTIONS, **given))
        answers.append(play(engine, seed=7, count=count))
        assert engine.compile_counter.count == 0
        assert engine.core.scheduler.stats.num_preemptions > 0
        engine.close()
    (expected, lost), (found, also_lost) = answers
    for number in expected.keys() - lost - also_lost:
        assert bits(found[number]) == bits(expected[number]), number
    assert len(lost | also_lost) < count // 2
