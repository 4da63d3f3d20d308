"""A step takes the cheapest sampling program that serves all its rows, and every option lands in its row."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from jaxengine.batch import RowSampling, SamplingSpec
from jaxengine.runtime.sampling_inputs import choose_shape, fill
from jaxengine.runtime.space import SampleShape
from jaxengine.sampling.tensors import Variant

GREEDY = SamplingSpec(temperature=0.0, seed=0)
RANDOM = SamplingSpec(temperature=0.7, seed=1)


def changed(**changes: object) -> SamplingSpec:
    return dataclasses.replace(GREEDY, **changes)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (RowSampling(GREEDY), SampleShape(8, Variant.GREEDY)),
        (RowSampling(RANDOM), SampleShape(8, Variant.RANDOM)),
        (RowSampling(changed(num_logprobs=0)), SampleShape(8, Variant.FULL)),
        (RowSampling(changed(bias_ids=(3,), bias_values=(1.0,))), SampleShape(8, Variant.FULL)),
        (RowSampling(GREEDY, allowed=np.zeros(1, np.uint32)), SampleShape(8, Variant.FULL)),
        (RowSampling(GREEDY, target=5), SampleShape(8, Variant.FULL)),
        (
            RowSampling(changed(presence_penalty=1.0), history=np.array([1], np.int32), num_prompt_tokens=1),
            SampleShape(8, Variant.FULL, 64),
        ),
    ],
)
def test_the_cheapest_program_that_serves_all(row, expected):
    assert choose_shape([RowSampling(GREEDY), row], num_rows=8, max_history=64) == expected


def test_every_option_lands_in_its_row():
    spec = SamplingSpec(
        temperature=0.5,
        seed=(7 << 32) + 9,
        top_k=3,
        top_p=0.5,
        min_p=0.25,
        presence_penalty=1.0,
        frequency_penalty=-1.0,
        repetition_penalty=1.5,
        bias_ids=(4, 6),
        bias_values=(1.0, -2.0),
        num_logprobs=2,
    )
    row = RowSampling(spec, np.array([5, 6, 7], np.int32), 2, np.array([9, 1], np.uint32), target=3)
    shape = SampleShape(4, Variant.FULL, 8)
    inputs = fill(shape, [RowSampling(GREEDY), row], [10, 20], vocab_size=40)
    assert inputs.temperature.tolist() == [0.0, 0.5, 0.0, 0.0]
    assert inputs.top_k.tolist() == [0, 3, 0, 0]
    assert inputs.top_p.tolist() == [1.0, 0.5, 1.0, 1.0]
    assert inputs.min_p.tolist() == [0.0, 0.25, 0.0, 0.0]
    assert inputs.seeds[1].tolist() == [7, 9]
    assert inputs.positions.tolist() == [10, 20, 0, 0]
    assert (inputs.presence[1], inputs.frequency[1], inputs.repetition[1]) == (1.0, -1.0, 1.5)
    assert inputs.history[1].tolist() == [5, 6, 7, -1, -1, -1, -1, -1]
    assert inputs.num_prompt.tolist() == [0, 2, 0, 0]
    assert inputs.bias_ids[1, :3].tolist() == [4, 6, -1]
    assert inputs.bias_values[1, :3].tolist() == [1.0, -2.0, 0.0]
    assert inputs.allowed[0].tolist() == [0xFFFFFFFF] * 2
    assert inputs.allowed[1].tolist() == [9, 1]
    assert inputs.targets.tolist() == [-1, 3, -1, -1]


def test_greedy_has_nothing_to_transfer():
    inputs = fill(SampleShape(8, Variant.GREEDY), [RowSampling(GREEDY)], [1], vocab_size=40)
    assert all(getattr(inputs, field.name) is None for field in dataclasses.fields(inputs))
