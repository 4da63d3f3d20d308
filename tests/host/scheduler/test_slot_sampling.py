"""From SamplingParams to what a slot holds."""

from __future__ import annotations

import numpy as np
import pytest

from jaxengine.contract.batch import SamplingSpec
from jaxengine.host.scheduler.masks import TokenMask
from jaxengine.host.scheduler.slot_sampling import SlotSampling, spec_of
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


def test_a_slot_without_mask_or_penalties_holds_its_spec_alone() -> None:
    sampling = SlotSampling(make_request("a", [1, 2]), 0, mask=None)
    state = sampling.begin(3, np.array([1, 2], np.int32))
    assert (state.slot, state.spec, state.allowed, state.history) == (3, sampling.spec, None, None)
    assert (sampling.masked, sampling.mask_changes) == (False, False)


def test_history_comes_with_penalties_only() -> None:
    sampling = SlotSampling(make_request("a", [1, 2], presence_penalty=0.5), 0, mask=None)
    state = sampling.begin(1, np.array([1, 2, 3], np.int32))
    assert state.history is not None
    assert (state.history.tolist(), state.num_prompt) == ([1, 2, 3], 2)
    assert not sampling.mask_changes


def test_a_mask_is_told_when_it_changes_and_not_again() -> None:
    request = make_request("a", [1, 2], min_tokens=2, eos_token_id=3)
    sampling = SlotSampling(request, 0, mask=TokenMask(request, 40))
    early = sampling.begin(1, np.zeros(2, np.int32)).allowed
    assert early is not None
    assert sampling.spec.masked
    assert sampling.mask_changes
    masks = [sampling.new_mask(np.zeros(2 + outputs, np.int32)) for outputs in range(1, 5)]
    assert masks[0] is None  # as the slot holds it
    assert masks[1] is not None
    assert masks[1].tolist() == [0xFFFFFFFF, 0xFF]
    assert masks[2:] == [None, None]


def test_allowed_tokens_never_change() -> None:
    request = make_request("a", [1, 2], allowed_token_ids=[4, 5])
    sampling = SlotSampling(request, 0, mask=TokenMask(request, 40))
    assert sampling.masked
    assert not sampling.mask_changes
