"""`deterministic=True`: bitwise equal log probabilities under any load, not only equal tokens."""

from __future__ import annotations

import random

import pytest

from jaxengine.contract.outputs import RequestOutput
from jaxengine.contract.sampling_params import SamplingParams
from tests.integration.engines import run, start, write_config

PARAMS = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True, logprobs=3, detokenize=False)


def bits(output: RequestOutput) -> list[tuple[tuple[int, float], ...]]:
    """Every log probability of the first sequence, to the last bit."""
    return [
        tuple((token, entry.logprob.hex()) for token, entry in position.items())
        for position in output.outputs[0].logprobs
    ]


@pytest.mark.slow
def test_alone_equals_among_64_bitwise(tmp_path):
    rng = random.Random(1)
    engine = start(
        write_config(tmp_path, torch_dtype="bfloat16"),
        deterministic=True,
        max_num_seqs=16,
        num_pages=50,  # too few for 16 sequences at once: some are preempted
        bucket_planner="tokens",
        buckets=None,
    )
    prompts = [[rng.randrange(3, 256) for _ in range(rng.randrange(1, 100))] for _ in range(64)]
    prompts[40] = [*prompts[3][:70], 5, 6, 7]  # shares a prefix
    together = [bits(output) for output in run(engine, prompts, PARAMS)]
    engine.ledger.check()
    chosen = [0, 3, 17, 29, 40, 41, 52, 63]
    alone = [bits(run(engine, [prompts[index]], PARAMS)[0]) for index in chosen]
    assert engine.core.scheduler.stats.num_preemptions > 0
    assert engine.compile_counter.count == 0
    engine.close()
    assert [together[index] for index in chosen] == alone
