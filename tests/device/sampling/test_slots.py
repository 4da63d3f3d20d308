"""What is written into a slot is what was given, and no other slot changes."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxengine.contract.batch import SamplingSpec
from jaxengine.contract.sampling_options import OPTIONS, Needs
from jaxengine.contract.sampling_params import MAX_LOGIT_BIAS
from jaxengine.device.layers.sharding import ONE_DEVICE, share_layers
from jaxengine.device.sampling import SampleInputs, Slots, settings_row, slots_spec
from jaxengine.device.sampling.rows import Rows
from jaxengine.device.sampling.slots import (
    SETTINGS,
    seed_words,
    write_bias,
    write_history,
    write_masks,
    write_settings,
)
from tests.device.sampling.oracle import Options
from tests.device.sampling.rows import counts_of

SLOTS, VOCAB = 6, 8 * 67


@pytest.fixture
def slots() -> Slots:
    """Every slot full of what others left."""
    spec = slots_spec(SLOTS, VOCAB, platform="cpu", layout=ONE_DEVICE)
    return jax.tree.map(lambda leaf: jnp.full(leaf.shape, 7, leaf.dtype), spec)


def changed(before: Slots, after: Slots) -> dict[str, list[int]]:
    """The slots in which something differs, by field."""
    found = {}
    for field in dataclasses.fields(Slots):
        if getattr(before, field.name) is None:
            continue
        differ = np.asarray(getattr(before, field.name) != getattr(after, field.name)).reshape(SLOTS, -1).any(axis=1)
        if differ.any():
            found[field.name] = np.flatnonzero(differ).tolist()
    return found


def test_settings_come_back_as_they_were_given(slots: Slots) -> None:
    given = {option.name: option.kind(option.default + 3 - i / 4) for i, option in enumerate(OPTIONS)}
    penalised = SamplingSpec(seed=-2, **given)
    other = SamplingSpec(temperature=0.0, seed=2**40 + 1, masked=True, bias_ids=(1,), bias_values=(2.0,))
    rows = np.zeros((4, 1 + len(SETTINGS)), np.int32)  # two of them padding
    rows[0, 0], rows[0, 1:] = 3, settings_row(penalised)
    rows[1, 0], rows[1, 1:] = 5, settings_row(other)
    after = jax.jit(write_settings)(slots, rows)
    assert changed(slots, after) == {"settings": [0, 3, 5]}
    number = np.array([0, 3, 5], np.int32)
    found = Rows.of(SampleInputs(slots=number, positions=number, targets=number * 0 - 1, writes=number, count=3), after)
    assert {name: value[1] for name, value in found.options.items()} == {n: np.float32(v) for n, v in given.items()}
    assert {name: value[2] for name, value in found.options.items()} == {
        option.name: 0 if option.name == "temperature" else option.default for option in OPTIONS
    }
    assert found.seeds.tolist() == [[0, 0], list(seed_words(-2)), list(seed_words(2**40 + 1))]
    assert found.needs.tolist() == [0, Needs.PENALTIES | Needs.RANDOM, Needs.MASK | Needs.BIAS]
    assert found.need(Needs.RANDOM).tolist() == [False, True, False]


def test_a_temperature_that_rounds_to_nothing_is_greedy() -> None:
    assert settings_row(SamplingSpec(seed=0, temperature=1e-6))[0] == 0
    assert settings_row(SamplingSpec(seed=0, temperature=1e-5))[0] == Needs.RANDOM


def test_more_tokens_than_a_column_can_say_are_all_of_them() -> None:
    row = settings_row(SamplingSpec(seed=0, top_k=2**40))
    assert row[SETTINGS.index("top_k")] == 2**31 - 1


@pytest.mark.parametrize("seed", [0, 1, 2**32, 2**63 - 1, -1, -(2**63), 2**64 - 1])
def test_seeds_of_64_bits_survive_in_two_words(seed: int) -> None:
    high, low = seed_words(seed)
    assert (high << 32 | low) == seed % 2**64
    assert np.array([high, low], np.uint32).tolist() == [high, low]


def test_bias_goes_into_one_slot(slots: Slots) -> None:
    row = np.arange(1 + 2 * MAX_LOGIT_BIAS, dtype=np.int32)
    row[0] = 4
    after = jax.jit(write_bias)(slots, row)
    assert changed(slots, after) == {"bias": [4]}
    assert after.bias[4].reshape(-1).tolist() == row[1:].tolist()


def test_masks_go_into_their_slots(slots: Slots) -> None:
    words = slots.allowed.shape[1]
    rows = np.zeros((4, 1 + words), np.uint32)
    rows[0], rows[1] = 0xFFFFFFFF, np.arange(1 + words)
    rows[:2, 0] = 5, 2
    after = jax.jit(write_masks)(slots, rows)
    assert changed(slots, after) == {"allowed": [0, 2, 5]}
    assert (np.asarray(after.allowed[5]) == 0xFFFFFFFF).all()
    assert after.allowed[2].tolist() == list(range(1, 1 + words))


@pytest.mark.parametrize("devices", [1, 8])
def test_a_history_is_counted(slots: Slots, devices: int) -> None:
    prompt, output = (3, 9, 3, VOCAB - 1), (9, 500, 500, 9, 9, 0)
    row = np.full(3 + 12, -1, np.int32)
    row[:3] = 3, 0, len(prompt)
    row[3:13] = prompt + output
    layout = ONE_DEVICE if devices == 1 else share_layers(jax.devices()[:devices])
    write = jax.jit(functools.partial(write_history, platform="cpu", layout=layout))
    after = write(slots, row)
    assert changed(slots, after) == {"counts": [3]}
    expected = counts_of(Options(prompt=prompt, output=output), vocab=VOCAB)
    np.testing.assert_array_equal(after.counts[3], expected)
    np.testing.assert_array_equal(write(after, row).counts[3], expected, err_msg="what was counted before is forgotten")
    for begin in range(0, 10, 3):  # in pieces, the second of which ends the prompt
        piece = (prompt + output)[begin : begin + 3]
        row = np.array([3, begin > 0, max(0, len(prompt) - begin), *piece, *[-1] * (12 - len(piece))], np.int32)
        after = write(after, row)
    np.testing.assert_array_equal(after.counts[3], expected)


def test_on_a_tpu_counts_are_large_enough_to_scatter_into() -> None:
    layout = share_layers(jax.devices()[:8])
    small = slots_spec(5, 1024, platform="tpu", layout=layout)
    assert small.counts.sharding.shard_shape(small.counts.shape) == (2**20 // 128, 128)
    assert small.last_token.shape == (5,)
    assert slots_spec(257, 151_936, platform="tpu", layout=layout).counts.shape == (257, 151_936)
