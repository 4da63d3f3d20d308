"""min_p, top_k and top_p as thresholds: against their definitions, against transformers, at the edges."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jaxengine.device.sampling import SampleInputs, Slots
from jaxengine.device.sampling.filters import _deviation, keep
from jaxengine.device.sampling.rows import Rows
from jaxengine.device.sampling.vocabulary import Vocabulary
from tests.device.sampling import oracle
from tests.device.sampling.oracle import Options, Row
from tests.device.sampling.rows import device_state, logits_rows
from tests.quick import slow_but

VOCAB = 67


@functools.partial(jax.jit, static_argnames="vocab")
def _keep(logits: jax.Array, kept: SampleInputs, slots: Slots, *, vocab: int) -> jax.Array:
    return keep(logits, Rows.of(kept, slots), Vocabulary(vocab, vocab))


def kept(logits: Row, options: Options) -> set[int]:
    """The token ids that the device's filters leave of one row."""
    vocab = len(logits)
    left = _keep(jnp.asarray(logits)[None], *device_state([options], vocab=vocab), vocab=vocab)
    return set(np.flatnonzero(left).tolist())


def real_logits(vocab: int = VOCAB) -> st.SearchStrategy[Row]:
    return logits_rows(vocab, broken=False)


@settings(max_examples=100, deadline=None)
@given(logits=real_logits(), top_k=st.integers(1, VOCAB + 3))
def test_top_k_keeps_the_k_best_and_whatever_ties_with_the_last(logits: Row, top_k: int) -> None:
    last = np.sort(logits)[::-1][min(top_k, VOCAB) - 1]
    assert kept(logits, Options(1.0, top_k=top_k)) == set(np.flatnonzero(logits >= last).tolist())


@settings(max_examples=150, deadline=None)
@given(logits=real_logits(), top_p=st.floats(2**-20, 1, exclude_max=True, width=32))
@example(logits=np.zeros(VOCAB, np.float32), top_p=0.5)
def test_top_p_keeps_the_least_set_that_reaches_p(logits: Row, top_p: float) -> None:
    chances = np.exp(logits.astype(np.float64) - logits.max())
    chances /= chances.sum()
    tokens = sorted(kept(logits, Options(1.0, top_p=top_p)))
    least = logits[tokens].min()
    assert tokens == np.flatnonzero(logits >= least).tolist()
    assert chances[tokens].sum() >= top_p - 1e-6
    assert chances[logits > least].sum() < top_p + 1e-6


@settings(max_examples=100, deadline=None)
@given(logits=real_logits(), min_p=st.floats(2**-20, 1, width=32))
def test_min_p_keeps_what_is_likely_enough_beside_the_best(logits: Row, min_p: float) -> None:
    ratio = np.exp(logits.astype(np.float64) - logits.max())
    tokens = kept(logits, Options(1.0, min_p=min_p))
    assert set(np.flatnonzero(ratio >= min_p * 1.0001).tolist()) <= tokens
    assert tokens <= set(np.flatnonzero(ratio >= min_p * 0.9999).tolist())
    assert int(np.argmax(logits)) in tokens


def test_top_n_sigma_counts_from_the_largest_logit() -> None:
    logits = np.array([-2.0, -1.0, 0.0, 1.0, 2.0, 6.0, -np.inf, -np.inf], np.float32)
    for deviations in (0.1, 1.0, 1.6, 2.0, 2.5, 3.5):
        cut = 6.0 - deviations * logits[:6].astype(np.float64).std()
        expected = set(np.flatnonzero(logits >= cut).tolist())
        assert kept(logits, Options(1.0, top_n_sigma=deviations)) == expected
        # A logit and its distance from others are divided by the temperature alike.
        assert kept(logits / np.float32(0.25), Options(0.25, top_n_sigma=deviations)) == expected
    assert kept(np.zeros(5, np.float32), Options(1.0, top_n_sigma=0.5)) == set(range(5))
    assert kept(logits, Options(1.0, top_n_sigma=1e-44)) == {5}, "the least above zero is not zero"


@pytest.mark.parametrize(
    ("scale", "vocab"),
    slow_but([(1.0, 151_936), (20.0, 262_144), (1e35, 67), (1e-5, 1000)], {(1.0, 151_936), (1e35, 67)}, several=True),
)
def test_a_deviation_is_that_of_float64(scale: float, vocab: int) -> None:
    logits = (np.random.default_rng(7).normal(-3, 1, vocab) * scale).astype(np.float32)
    logits[:5] = -np.inf
    exact = logits[5:].astype(np.float64).std()
    found = _deviation(jnp.asarray(logits)[None], jnp.asarray(logits.max())[None], Vocabulary(vocab, vocab))
    np.testing.assert_allclose(np.asarray(found)[0], exact, rtol=1e-4)


def test_xtc_leaves_the_least_likely_of_the_top_choices_and_what_is_below() -> None:
    logits = np.log(np.array([0.05, 0.4, 0.15, 0.3, 0.1], np.float32))
    assert kept(logits, Options(1.0, xtc_probability=1.0, xtc_threshold=0.2)) == {0, 2, 3, 4}
    assert kept(logits, Options(1.0, xtc_probability=1.0, xtc_threshold=0.12)) == {0, 2, 4}
    assert kept(logits, Options(1.0, xtc_probability=1.0, xtc_threshold=0.45)) == set(range(5))  # none is above
    assert kept(logits, Options(1.0, xtc_probability=1.0, xtc_threshold=0.35)) == set(range(5))  # one is
    assert kept(logits, Options(1.0, xtc_probability=1.0, xtc_threshold=0.0)) == {0}
    # Of what top_k leaves, 0.4 and 0.3, both are above 0.4.
    assert kept(logits, Options(1.0, top_k=2, xtc_probability=1.0, xtc_threshold=0.4)) == {3}
    assert kept(logits, Options(0.0, xtc_probability=1.0, xtc_threshold=0.2)) == set(range(5))


def test_xtc_acts_as_often_as_it_is_asked_to_by_seed_and_position_alone() -> None:
    logits = np.log(np.array([0.5, 0.3, 0.2], np.float32))
    acted = [
        kept(logits, Options(1.0, xtc_probability=0.3, xtc_threshold=0.25, seed=seed, position=position)) != {0, 1, 2}
        for seed in range(20)
        for position in range(30)
    ]
    assert abs(np.mean(acted) - 0.3) < 4 * np.sqrt(0.3 * 0.7 / len(acted))
    by_seed = np.reshape(acted, (20, 30))
    assert by_seed.sum(axis=0).min() > 0
    assert by_seed.sum(axis=1).min() > 0
    assert not any(np.array_equal(by_seed[0], other) for other in by_seed[1:])


@settings(max_examples=100, deadline=None)
@given(
    logits=real_logits(),
    top_k=st.integers(0, VOCAB + 3),
    top_p=st.floats(2**-7, 1, width=32),
    min_p=st.sampled_from([0.0, 0.01, 0.2]),
)
def test_each_filter_works_on_what_the_one_before_it_left(logits: Row, top_k: int, top_p: float, min_p: float) -> None:
    options = Options(1.0, top_k=top_k, top_p=top_p, min_p=min_p)
    candidates = [oracle.keep(logits, options, fuzz=fuzz) for fuzz in oracle.FUZZES]
    assert kept(logits, options) in candidates


def test_without_filters_and_in_greedy_rows_nothing_is_dropped() -> None:
    logits = np.random.default_rng(0).normal(0, 3, VOCAB).astype(np.float32)
    assert len(kept(logits, Options(1.0))) == VOCAB
    assert len(kept(logits, Options(0.0, top_k=3, top_p=0.1, min_p=0.5))) == VOCAB
    assert len(kept(logits, Options(1.0, top_k=VOCAB))) == VOCAB


@pytest.mark.parametrize("scale", [0.0, 1e-3, 1.0, 8.0])
def test_a_large_vocabulary_is_cut_where_float64_cuts_it(scale: float) -> None:
    vocab = 151_936
    logits = np.random.default_rng(3).normal(0, scale, vocab).astype(np.float32)
    ordered = np.sort(logits)[::-1]
    for top_k in (1, 50, 4096, vocab - 1):
        assert len(kept(logits, Options(1.0, top_k=top_k))) == np.sum(logits >= ordered[top_k - 1])
    mass = np.cumsum(np.exp(ordered.astype(np.float64) - ordered[0]))
    for top_p in (0.1, 0.9, 0.999):
        count = len(kept(logits, Options(1.0, top_p=top_p)))
        least = ordered[count - 1]
        assert mass[count - 1] >= (top_p - 2e-5) * mass[-1]
        assert np.sum(np.exp(logits[logits > least].astype(np.float64) - ordered[0])) < (top_p + 2e-5) * mass[-1]


def test_thresholds_lie_on_either_side_of_zero() -> None:
    logits = np.array([-3.0, -0.0, 0.0, 1e-40, 2.5, -1e30, 1e30], np.float32)
    best, second, zeros = {6}, {6, 4}, {6, 4, 3, 2, 1}  # 1e-40 is zero on devices without subnormal numbers
    expected = [best, second, zeros, zeros, zeros, zeros | {0}]
    assert [kept(logits, Options(1.0, top_k=top_k)) for top_k in range(1, 7)] == expected


def test_a_search_between_minus_zero_and_zero_ends() -> None:
    row = np.full(VOCAB, -0.0, np.float32)
    assert len(kept(row, Options(1.0, top_k=3, top_p=0.5, min_p=1.0))) == VOCAB


@pytest.mark.torch
@pytest.mark.parametrize("seed", range(5))
def test_the_kept_tokens_are_those_of_transformers(seed: int) -> None:
    torch = pytest.importorskip("torch")
    warpers = pytest.importorskip("transformers.generation.logits_process")
    logits = np.random.default_rng(seed).normal(0, 3, 5003).astype(np.float32)

    def theirs(*chain: object) -> set[int]:
        scores = torch.from_numpy(logits.copy())[None]
        for warper in chain:
            scores = warper(None, scores)  # type: ignore[operator]
        return set(np.flatnonzero(np.isfinite(scores[0].numpy())).tolist())

    for top_k in (1, 7, 500):
        assert kept(logits, Options(1.0, top_k=top_k)) == theirs(warpers.TopKLogitsWarper(top_k))
    for top_p in (0.05, 0.5, 0.9, 0.97):
        assert kept(logits, Options(1.0, top_p=top_p)) == theirs(warpers.TopPLogitsWarper(top_p))
        both = theirs(warpers.TopKLogitsWarper(40), warpers.TopPLogitsWarper(top_p))
        assert kept(logits, Options(1.0, top_k=40, top_p=top_p)) == both
    for min_p in (0.001, 0.1):
        assert kept(logits, Options(1.0, min_p=min_p)) == theirs(warpers.MinPLogitsWarper(min_p))
