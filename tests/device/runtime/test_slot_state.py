"""A step takes the least sampling program that serves all its rows, and every option lands in its slot."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest

from jaxengine.contract.batch import SamplingSpec, SlotState
from jaxengine.contract.rows import Pool, Row, Rows, Sample, Score, Want
from jaxengine.contract.sampling_params import MAX_LOGIT_BIAS
from jaxengine.device.runtime.inputs import FlatRows, KeptPlaces
from jaxengine.device.runtime.programs import BIAS_NAME, HISTORY_NAME, MASKS_NAME, SETTINGS_NAME, SLOTS_PER_LAUNCH
from jaxengine.device.runtime.slot_state import SlotTable, begin_writes, mask_writes
from jaxengine.device.sampling import Variant, settings_row
from jaxengine.device.sampling.slots import SETTINGS

GREEDY = SamplingSpec(temperature=0.0, seed=0)
RANDOM = SamplingSpec(temperature=0.7, seed=1)
SPACE = SimpleNamespace(
    slots=SimpleNamespace(allowed=np.zeros((9, 2))), history_tokens=8, max_num_seqs=40, num_drafts=0
)


def changed(**changes: object) -> SamplingSpec:
    return dataclasses.replace(GREEDY, **changes)


def kept(*wants: tuple[int, Want]) -> KeptPlaces:
    """Rows of two tokens of these slots."""
    rows = [Row(slot, (1, 2), 2, 0, want) for slot, want in wants]
    return KeptPlaces.of(FlatRows.of(Rows(rows)))


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (GREEDY, Variant.GREEDY),
        (changed(temperature=1e-7), Variant.GREEDY),
        (RANDOM, Variant.FULL),
        (changed(num_logprobs=0), Variant.FULL),
        (changed(bias_ids=(3,), bias_values=(1.0,)), Variant.FULL),
        (changed(masked=True), Variant.FULL),
        (changed(presence_penalty=1.0), Variant.FULL),
    ],
)
def test_the_least_program_that_serves_all(spec, expected):
    table = SlotTable(4)
    table.begin([SlotState(1, GREEDY), SlotState(2, spec), SlotState(3, GREEDY)])
    order, num_sampled, variant = table.order(kept((1, Sample()), (2, Sample()), (3, Sample())))
    assert (num_sampled, variant) == (3, expected)
    assert order.tolist() == ([0, 1, 2] if expected is Variant.GREEDY else [1, 0, 2])


def test_those_that_need_most_come_first_and_pooled_ones_last():
    table = SlotTable(6)
    specs = [GREEDY, RANDOM, changed(num_logprobs=2), GREEDY, RANDOM]
    table.begin(SlotState(slot, spec) for slot, spec in enumerate(specs, 1))
    places = kept((1, Sample()), (3, Pool()), (2, Sample()), (3, Sample()), (4, Score((7,), sample=True)), (5, None))
    order, num_sampled, variant = table.order(places)
    assert order.tolist() == [3, 4, 2, 0, 5, 1]
    assert (num_sampled, variant) == (5, Variant.FULL)
    assert table.logprobs(places).tolist() == [False, False, False, True, True, False]


def test_a_slot_that_begins_again_is_another():
    table = SlotTable(2)
    table.begin([SlotState(1, changed(num_logprobs=2))])
    table.begin([SlotState(1, RANDOM)])
    places = kept((1, Sample()))
    assert table.order(places)[2] is Variant.FULL
    assert not table.logprobs(places).any()


def test_nothing_to_sample():
    table = SlotTable(2)
    order, num_sampled, variant = table.order(kept((1, None)))
    assert (order.tolist(), num_sampled, variant) == ([], 0, Variant.GREEDY)
    assert table.order(kept((1, Pool())))[1] == 0


def test_every_option_lands_in_its_slot():
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
        masked=True,
    )
    state = SlotState(5, spec, np.array([9, 1], np.uint32), np.array([5, 6, 7], np.int32), 2)
    settings, masks, bias, history = begin_writes([state], SPACE)
    assert [name for name, _ in (settings, masks, bias, history)] == [
        SETTINGS_NAME,
        MASKS_NAME,
        BIAS_NAME,
        HISTORY_NAME,
    ]
    assert settings[1][0].tolist() == [5, *settings_row(spec)]
    row = dict(zip(SETTINGS, settings[1][0, 1:], strict=True))
    assert (row["needs"], row["top_k"], row["seed_high"], row["seed_low"]) == (31, 3, 7, 9)
    floats = {name: float(value.view(np.float32)) for name, value in row.items()}
    names = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
    assert [floats[name] for name in names] == [0.5, 0.5, 0.25, 1.0, -1.0, 1.5]
    assert not settings[1][1:].any()
    assert masks[1].shape == (SLOTS_PER_LAUNCH, 3)
    assert masks[1][0].tolist() == [5, 9, 1]
    assert not masks[1][1:].any()
    ids, values = bias[1][1:].reshape(2, MAX_LOGIT_BIAS)
    assert bias[1][0] == 5
    assert ids[:3].tolist() == [4, 6, -1]
    assert values[:2].view(np.float32).tolist() == [1.0, -2.0]
    assert history[1].tolist() == [5, 0, 2, 5, 6, 7, -1, -1, -1, -1, -1]


def test_a_long_history_is_written_in_pieces():
    state = SlotState(5, changed(presence_penalty=1.0), None, np.arange(18, dtype=np.int32), 9)
    _, *pieces = begin_writes([state], SPACE)
    assert [name for name, _ in pieces] == [HISTORY_NAME] * 3
    assert [row[:3].tolist() for _, row in pieces] == [[5, 0, 9], [5, 1, 1], [5, 1, 0]]
    assert [row[3:].tolist() for _, row in pieces][1:] == [[*range(8, 16)], [16, 17, *[-1] * 6]]


def test_what_a_slot_does_not_need_is_not_written():
    states = [SlotState(slot, RANDOM) for slot in range(1, 3 + SLOTS_PER_LAUNCH)]
    writes = list(begin_writes(states, SPACE))
    assert [name for name, _ in writes] == [SETTINGS_NAME] * 2
    assert writes[0][1][:, 0].tolist() == list(range(1, 1 + SLOTS_PER_LAUNCH))
    assert writes[1][1][:3, 0].tolist() == [1 + SLOTS_PER_LAUNCH, 2 + SLOTS_PER_LAUNCH, 0]


def test_a_slot_that_will_be_masked_begins_with_all_allowed():
    _, (name, rows) = begin_writes([SlotState(2, changed(masked=True))], SPACE)
    assert name == MASKS_NAME
    assert rows[0].tolist() == [2, 0xFFFFFFFF, 0xFFFFFFFF]


def test_masks_are_written_a_few_at_a_time():
    masks = {slot: np.array([slot, 1], np.uint32) for slot in range(1, 2 * SLOTS_PER_LAUNCH)}
    writes = list(mask_writes({slot: (mask,) for slot, mask in masks.items()}, SPACE))
    assert [name for name, _ in writes] == [MASKS_NAME] * 2
    found = np.concatenate([rows for _, rows in writes])
    assert found[:-1].tolist() == [[slot, slot, 1] for slot in masks]
    assert list(mask_writes({}, SPACE)) == []
