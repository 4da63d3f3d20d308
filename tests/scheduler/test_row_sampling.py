"""From SamplingParams to the sampling of rows."""

from __future__ import annotations

import numpy as np
import pytest

from jaxengine.batch import SamplingSpec
from jaxengine.scheduler.masks import TokenMask
from jaxengine.scheduler.row_sampling import SequenceSampling, spec_of
from tests.harness import make_request


def test_every_field_reaches_the_spec() -> None:
    request = make_request(
        "a",
        [1],
        seed=40,
        temperature=0.7,
        top_k=5,
        top_p=0.9,
        min_p=0.1,
        presence_penalty=0.2,
        frequency_penalty=0.3,
        repetition_penalty=1.1,
        logit_bias={7: 2.0, "9": -200},
        logprobs=4,
    )
    assert spec_of(request, 2) == SamplingSpec(
        temperature=0.7,
        seed=42,
        top_k=5,
        top_p=0.9,
        min_p=0.1,
        presence_penalty=0.2,
        frequency_penalty=0.3,
        repetition_penalty=1.1,
        bias_ids=(7, 9),
        bias_values=(2.0, -100.0),
        num_logprobs=4,
    )


def test_a_temperature_that_is_greedy_is_zero() -> None:
    assert spec_of(make_request("a", [1], temperature=1e-6), 0).temperature == 0.0


@pytest.mark.parametrize(
    ("seed", "index", "expected"), [(2**63 - 1, 1, -(2**63)), (-1, 0, -1), (-1, 1, 0), (2**63 - 1, 0, 2**63 - 1)]
)
def test_seeds_stay_signed_64_bit_numbers(seed: int, index: int, expected: int) -> None:
    assert spec_of(make_request("a", [1], seed=seed), index).seed == expected


def test_sampling_that_never_changes_is_one_value() -> None:
    sampling = SequenceSampling(make_request("a", [1, 2]), 0, mask=None)
    assert sampling.next_token(np.array([1, 2], np.int32)) is sampling.constant
    assert sampling.next_token(np.array([1, 2, 3], np.int32)) is sampling.constant


def test_history_comes_with_penalties_only() -> None:
    sampling = SequenceSampling(make_request("a", [1, 2], presence_penalty=0.5), 0, mask=None)
    row = sampling.next_token(np.array([1, 2, 3], np.int32))
    assert row.history is not None
    assert (row.history.tolist(), row.num_prompt_tokens) == ([1, 2, 3], 2)


def test_a_mask_changes_the_value_only_when_it_changes() -> None:
    request = make_request("a", [1, 2], min_tokens=2, eos_token_id=3)
    sampling = SequenceSampling(request, 0, mask=TokenMask(request, 40))
    rows = [sampling.next_token(np.zeros(2 + outputs, np.int32)) for outputs in range(4)]
    assert rows[0] is rows[1]
    assert rows[2] is rows[3]
    assert rows[0].allowed is not None
    assert rows[2].allowed is None
    assert sampling.constant is None


def test_a_prompt_token_is_a_target_with_the_prompts_own_count() -> None:
    sampling = SequenceSampling(make_request("a", [1, 2], prompt_logprobs=5, logprobs=2, temperature=0.9), 0, mask=None)
    row = sampling.prompt_token(np.int32(2))
    assert (row.target, row.spec.num_logprobs, row.spec.temperature) == (2, 5, 0.0)
    assert type(row.target) is int
