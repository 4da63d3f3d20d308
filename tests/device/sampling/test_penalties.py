"""Masks, bias and penalties by worked numbers; the combinations are in test_sampler."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxengine.device.sampling import SampleInputs, Slots
from jaxengine.device.sampling.penalties import add_bias, apply_penalties, mask_allowed
from jaxengine.device.sampling.rows import Rows
from jaxengine.device.sampling.vocabulary import Vocabulary
from tests.device.sampling.oracle import Options
from tests.device.sampling.rows import device_state

VOCAB = 40
LOGITS = np.linspace(-2.0, 1.9, VOCAB, dtype=np.float32)


@functools.partial(jax.jit, static_argnums=0)
def _apply(step: object, logits: jax.Array, kept: SampleInputs, slots: Slots) -> jax.Array:
    return step(logits, Rows.of(kept, slots), slots, Vocabulary(VOCAB, VOCAB))  # type: ignore[operator]


def changed(step: object, options: Options, *, beside: Options | None = None) -> dict[int, float]:
    """The token ids whose logit `step` changed, and to what; `beside` is a neighbouring row."""
    rows = [options] if beside is None else [options, beside]
    after = np.asarray(_apply(step, jnp.tile(LOGITS, (len(rows), 1)), *device_state(rows, vocab=VOCAB)))[0]
    return {int(token): float(after[token]) for token in np.flatnonzero(after != LOGITS)}


def test_frequency_counts_each_occurrence_in_the_output_only() -> None:
    row = Options(frequency_penalty=0.5, prompt=(3, 3, 4), output=(5, 6, 5, 5))
    assert changed(apply_penalties, row) == pytest.approx({5: LOGITS[5] - 1.5, 6: LOGITS[6] - 0.5})


def test_presence_counts_a_token_of_the_output_once() -> None:
    row = Options(presence_penalty=0.5, prompt=(3, 4), output=(5, 6, 5))
    assert changed(apply_penalties, row) == pytest.approx({5: LOGITS[5] - 0.5, 6: LOGITS[6] - 0.5})


def test_repetition_divides_positive_and_multiplies_negative_logits_of_prompt_and_output() -> None:
    row = Options(repetition_penalty=2.0, prompt=(3, 38), output=(3, 39))
    expected = {3: LOGITS[3] * 2, 38: LOGITS[38] / 2, 39: LOGITS[39] / 2}
    assert changed(apply_penalties, row) == pytest.approx(expected)


def test_repetition_comes_before_frequency_and_presence() -> None:
    row = Options(repetition_penalty=2.0, frequency_penalty=0.25, presence_penalty=1.0, output=(39, 39))
    assert changed(apply_penalties, row) == pytest.approx({39: LOGITS[39] / 2 - 0.5 - 1.0})


def test_a_token_sampled_many_times_is_counted_exactly() -> None:
    row = Options(frequency_penalty=0.5, output=(7,) * 12)
    assert changed(apply_penalties, row) == pytest.approx({7: LOGITS[7] - 6.0})


def test_a_neighbour_with_penalties_changes_nothing_here() -> None:
    neighbour = Options(repetition_penalty=1.7, frequency_penalty=1.0, presence_penalty=1.0, prompt=(1,), output=(2, 3))
    plain = Options(prompt=(1, 2), output=(2, 3))
    assert changed(apply_penalties, plain, beside=neighbour) == {}
    assert changed(add_bias, plain, beside=Options(bias={4: 3.0})) == {}
    assert changed(mask_allowed, plain, beside=Options(allowed=frozenset({4}))) == {}


def test_bias_is_added_and_ids_beyond_the_vocabulary_are_dropped() -> None:
    row = Options(bias={0: 1.5, VOCAB - 1: -100.0, VOCAB: 50.0, VOCAB + 1000: 50.0})
    assert changed(add_bias, row) == pytest.approx({0: LOGITS[0] + 1.5, VOCAB - 1: LOGITS[VOCAB - 1] - 100.0})


def test_only_allowed_tokens_keep_their_logit() -> None:
    allowed = frozenset({0, 31, 32, VOCAB - 1})
    assert changed(mask_allowed, Options(allowed=allowed)) == dict.fromkeys(set(range(VOCAB)) - allowed, -np.inf)
    assert changed(mask_allowed, Options()) == {}


def test_bits_beyond_the_vocabulary_do_not_count_as_allowed() -> None:
    kept, slots = device_state([Options(allowed=frozenset())], vocab=VOCAB)
    slots.allowed[1, 1] = 1 << 20  # token 52 of 40
    after = _apply(mask_allowed, jnp.asarray(LOGITS)[None], kept, slots)
    np.testing.assert_array_equal(after[0], LOGITS)
