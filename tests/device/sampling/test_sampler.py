"""The whole sampler against the oracle, over every option and combination."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxengine.contract.sampling_options import Needs
from jaxengine.device.layers.sharding import ONE_DEVICE, share_layers
from jaxengine.device.sampling import Variant
from jaxengine.device.sampling.noise import gumbel, uniform
from jaxengine.device.sampling.slots import SETTINGS, seed_words
from tests.device.sampling import oracle
from tests.device.sampling.oracle import Options
from tests.device.sampling.rows import device_state, logits_rows, options, run, sampled
from tests.quick import slow_but

ROWS, VOCAB = 3, 67
_gumbel, _uniform = jax.jit(gumbel), jax.jit(uniform)


def noise_of(rows: list[Options], *, vocab: int) -> tuple[np.ndarray, np.ndarray]:
    """Of each row its noise, and the coin of XTC."""
    seeds = np.array([seed_words(row.seed) for row in rows], np.uint32)
    positions = np.array([row.position for row in rows], np.int32)
    return np.asarray(_gumbel(seeds, positions, jnp.arange(vocab)[None])), np.asarray(_uniform(seeds, positions))


@settings(max_examples=50, deadline=None)
@given(
    rows=st.lists(options(VOCAB), min_size=ROWS, max_size=ROWS),
    logits=st.lists(logits_rows(VOCAB), min_size=ROWS, max_size=ROWS).map(np.stack),
)
def test_every_combination_of_options_agrees_with_the_oracle(rows: list[Options], logits: np.ndarray) -> None:
    outputs = sampled(Variant.FULL, logits, rows)
    noise, coins = noise_of(rows, vocab=VOCAB)
    for i, row in enumerate(rows):
        token = int(outputs.tokens[i])
        if row.target is None:
            assert token in oracle.acceptable(logits[i], row, noise[i], coins[i])
        expected = oracle.logprobs(logits[i])
        named = token if row.target is None else row.target
        np.testing.assert_allclose(outputs.logprob[i], expected[named], rtol=2e-5, atol=2e-5)
        cleaned = oracle.clean(logits[i])
        assert int(outputs.rank[i]) == np.sum(cleaned >= cleaned[named])
        best = np.argsort(-cleaned, kind="stable")[:5]
        np.testing.assert_array_equal(outputs.top_ids[i], best)
        np.testing.assert_allclose(outputs.top_logprobs[i], expected[best], rtol=2e-5, atol=2e-5)


@settings(max_examples=50, deadline=None)
@given(logits=st.lists(logits_rows(VOCAB), min_size=ROWS, max_size=ROWS).map(np.stack))
def test_the_smaller_variant_gives_the_same_tokens(logits: np.ndarray) -> None:
    rows = [Options()] * ROWS
    greedy = sampled(Variant.GREEDY, logits, rows)
    np.testing.assert_array_equal(greedy.tokens, sampled(Variant.FULL, logits, rows).tokens)
    assert greedy.top_ids is None


@pytest.mark.slow
def test_bfloat16_logits_are_sampled_in_float32() -> None:
    logits = jnp.asarray(np.random.default_rng(0).normal(0, 4, (ROWS, VOCAB)), jnp.bfloat16)
    rows = [Options(temperature=0.9, top_k=5, seed=i) for i in range(ROWS)]
    upcast = sampled(Variant.FULL, np.asarray(logits.astype(jnp.float32)), rows)
    direct = sampled(Variant.FULL, logits, rows)
    np.testing.assert_array_equal(direct.tokens, upcast.tokens)
    assert direct.logprob.dtype == jnp.float32


def test_greedy_takes_the_lowest_of_equal_tokens() -> None:
    logits = np.zeros((ROWS, VOCAB), np.float32)
    logits[1, [9, 40]] = 2.0
    np.testing.assert_array_equal(sampled(Variant.GREEDY, logits, [Options()] * ROWS).tokens, [0, 9, 0])


def test_bad_rows_yield_a_defined_token_and_leave_the_others_alone() -> None:
    logits = np.random.default_rng(1).normal(0, 1, (ROWS, VOCAB)).astype(np.float32)
    rows = [Options(temperature=1.0, top_p=0.8, seed=i) for i in range(ROWS)]
    good = sampled(Variant.FULL, logits, rows)
    for bad, expected in ((np.nan, 0), (-np.inf, 0), (np.inf, None)):
        logits[1] = bad
        outputs = sampled(Variant.FULL, logits, rows)
        for row in (0, 2):
            assert outputs.tokens[row] == good.tokens[row]
            assert outputs.logprob[row] == good.logprob[row]
        if expected is not None:
            assert outputs.tokens[1] == expected
            assert outputs.logprob[1] == -np.inf
    logits[1] = 0.0
    logits[1, 13] = np.inf
    assert sampled(Variant.FULL, logits, rows).tokens[1] == 13


def test_a_row_that_allows_nothing_is_sampled_as_if_it_allowed_everything() -> None:
    logits = np.tile(np.random.default_rng(2).normal(0, 1, VOCAB).astype(np.float32), (ROWS, 1))
    for temperature in (0.0, 1.0):
        rows = [Options(temperature), Options(temperature, allowed=frozenset()), Options(temperature)]
        tokens = sampled(Variant.FULL, logits, rows).tokens
        assert tokens[0] == tokens[1] == tokens[2]


def test_extreme_penalties_stay_numbers() -> None:
    logits = np.tile(np.linspace(-1, 1, VOCAB, dtype=np.float32), (ROWS, 1))
    logits[:, 7] = 0.0
    rows = [Options(repetition_penalty=r, prompt=(7, 66), output=(0, 66)) for r in (3e38, 1e-38, 1.0)]
    np.testing.assert_array_equal(sampled(Variant.FULL, logits, rows).tokens, [65, 66, 66])


@pytest.mark.slow
def test_rows_that_are_not_sampled_cost_no_group() -> None:
    """16 places are as many groups on the CPU. The row of the first group gets the token that it gets alone."""
    logits = np.random.default_rng(3).normal(0, 3, (16, VOCAB)).astype(np.float32)
    logits[8:, 1] = 1e3
    row = Options(1.0, seed=7)
    for variant in Variant:
        tokens = sampled(variant, logits, [row]).tokens
        assert tokens[0] == sampled(variant, logits[:1], [row]).tokens[0]
        assert not tokens[8:].any()


def test_what_a_group_does_not_need_is_not_done() -> None:
    """Of 16 rows the first wants log probabilities, which its group of one is given, and the others are not."""
    logits = np.random.default_rng(3).normal(0, 3, (16, VOCAB)).astype(np.float32)
    kept, slots = device_state([Options()] * 16, vocab=VOCAB, logprobs=False)
    slots.settings[1, SETTINGS.index("needs")] = Needs.LOGPROBS
    outputs, _ = run(Variant.FULL, jnp.asarray(logits), kept, slots, max_logprobs=5)
    expected = sampled(Variant.FULL, logits, [Options()] * 16)
    np.testing.assert_array_equal(outputs.tokens, expected.tokens)
    np.testing.assert_array_equal(outputs.top_ids[:1], expected.top_ids[:1])
    assert not outputs.top_ids[1:].any()
    assert not outputs.logprob[1:].any()


def test_a_scored_row_reports_its_target_whatever_its_slot_is_set_to() -> None:
    logits = np.random.default_rng(4).normal(0, 3, (2, VOCAB)).astype(np.float32)
    rows = [
        Options(temperature=1.0, allowed=frozenset({3}), presence_penalty=1.0, output=(5,), target=11),
        Options(target=12),
    ]
    kept, slots = device_state(rows, vocab=VOCAB, logprobs=False)
    outputs, _ = run(Variant.FULL, jnp.asarray(logits), kept, slots, max_logprobs=5)
    expected = [oracle.logprobs(logits[0])[11], oracle.logprobs(logits[1])[12]]
    np.testing.assert_allclose(outputs.logprob, expected, rtol=2e-5)


@pytest.mark.parametrize("variant", list(Variant))
@pytest.mark.parametrize("devices", slow_but([1, 8], {1}))
def test_tokens_are_noted_in_the_slots_that_are_written(variant: Variant, devices: int) -> None:
    """Four rows; one of them is scored or drafted and writes nothing, another is padding."""
    logits = np.random.default_rng(5).normal(0, 3, (4, 8 * VOCAB)).astype(np.float32)
    penalties = {"presence_penalty": 0.5, "prompt": (1, 2), "output": (1, 4)} if variant is Variant.FULL else {}
    rows = [Options(**penalties), Options(), Options(**penalties)]
    kept, slots = device_state(rows, vocab=8 * VOCAB, padded=4, slots=[5, 2, 4], logprobs=False)
    kept.writes[2] = 0
    layout = ONE_DEVICE if devices == 1 else share_layers(jax.devices()[:devices])
    outputs, after = run(variant, jnp.asarray(logits), kept, slots, max_logprobs=5, layout=layout)
    expected = slots.last_token.copy()
    expected[[5, 2]] = outputs.tokens[:2]
    np.testing.assert_array_equal(after.last_token, expected)
    counts = slots.counts.copy()
    if variant is Variant.FULL:
        counts[5, outputs.tokens[0]] += 1
    np.testing.assert_array_equal(after.counts, counts)
    for name in ("settings", "bias", "allowed"):
        np.testing.assert_array_equal(getattr(after, name), getattr(slots, name))
