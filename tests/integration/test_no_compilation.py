"""After warm-up nothing compiles, whatever is asked for."""

from __future__ import annotations

import random
from typing import Any

import pytest

from jaxengine.contract.sampling_params import SamplingParams
from jaxengine.errors import RequestError
from tests.integration.engines import run, some_options, start, synchronous, write_config
from tests.quick import slow_but


def random_params(rng: random.Random) -> SamplingParams:
    options: dict[str, Any] = {"max_tokens": rng.randrange(1, 8), "detokenize": False}
    choices: dict[str, Any] = {
        "temperature": rng.choice([0.0, 0.7, 1.5]),
        **some_options(rng, share=0.7),
        "logprobs": rng.choice([0, 5, 20]),
        "prompt_logprobs": rng.choice([0, 3]),
        "logit_bias": {rng.randrange(256): rng.uniform(-100, 100)},
        "allowed_token_ids": [rng.randrange(256) for _ in range(5)],
        "min_tokens": 1,
        "seed": rng.randrange(2**63),
        "stop_token_ids": [rng.randrange(256)],
        "ignore_eos": True,
    }
    options |= {name: choices[name] for name in rng.sample(sorted(choices), rng.randrange(len(choices)))}
    if options.get("temperature", 1.0) > 0:
        options["n"] = rng.choice([1, 1, 1, 3])
    return SamplingParams(**options)


@pytest.mark.parametrize("rounds", slow_but([4, 40], {4}, often=()))
def test_random_requests(tmp_path, rounds):
    rng = random.Random(0)
    engine = start(write_config(tmp_path), num_pages=48)
    for _ in range(rounds):
        prompts = [[rng.randrange(256) for _ in range(rng.randrange(1, 60))] for _ in range(25)]
        params = [random_params(rng) for _ in prompts]
        outputs = run(engine, prompts, params)
        assert all(output.finished for output in outputs)
        for output, given in zip(outputs, params, strict=True):
            assert len(output.outputs) == given.n
            assert all(1 <= len(completion.token_ids) <= given.max_tokens for completion in output.outputs)
    engine.ledger.check()
    assert engine.compile_counter.count == 0
    engine.close()


def test_a_bad_request_harms_nobody(tmp_path):
    engine = start(write_config(tmp_path))
    [request] = engine.front.intake.prepare(
        [[5, 6, 7]], [SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, detokenize=False)]
    )
    sync = synchronous(engine)
    sync.submit([request])
    sync.step()
    for prompt, params, message in [
        ([], SamplingParams(), "empty"),
        ([256], SamplingParams(), "256"),
        ([1] * 200, SamplingParams(), "128"),
        ([1], SamplingParams(logprobs=21), "21"),
    ]:
        with pytest.raises(RequestError, match=message):
            engine.front.intake.prepare([prompt], [params])
    outputs = []
    while sync.has_unfinished:
        outputs += sync.step()
    assert len(outputs[-1].outputs[0].token_ids) == 8
    engine.close()


def test_skip_warmup_compiles_on_first_use_and_says_so(tmp_path, caplog):
    engine = start(write_config(tmp_path), skip_warmup=True, xla_cache_path="off")
    with caplog.at_level("WARNING", logger="jaxengine"):
        run(engine, [[1, 2, 3]], SamplingParams(temperature=0.0, max_tokens=2, detokenize=False))
    assert engine.compile_counter.count > 0
    assert any("on first use" in record.message for record in caplog.records)
    engine.close()
