"""The noise is the right distribution, independent between seeds, positions and tokens, and the same for ever."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy  # which loads its statistics where they are used: they take a second and a half

from jaxengine.device.sampling import Variant
from jaxengine.device.sampling.noise import gumbel
from jaxengine.device.sampling.slots import seed_words
from tests.device.sampling.oracle import Options
from tests.device.sampling.rows import device_state, run

draw = jax.jit(gumbel)


def noise(seeds: list[int], positions: list[int], *, vocab: int) -> np.ndarray:
    words = np.array([seed_words(seed) for seed in seeds], np.uint32)
    return np.asarray(draw(words, np.array(positions, np.int32), jnp.arange(vocab)[None]))


def test_the_noise_of_a_seed_never_changes() -> None:
    """Seeded requests must repeat on every version, so these numbers are recorded, not derived."""
    recorded = noise([0, 2**40 + 3, -1], [0, 17, 99], vocab=3)
    np.testing.assert_allclose(recorded, RECORDED, rtol=1e-5)


def test_it_is_gumbel_distributed() -> None:
    values = noise(list(range(20)), list(range(20)), vocab=5000).ravel()
    assert scipy.stats.kstest(values, "gumbel_r").pvalue > 0.01
    assert np.isfinite(values).all()


def test_large_values_which_decide_are_finely_spaced() -> None:
    values = noise(list(range(40)), [0] * 40, vocab=151_936)
    best = values.max(axis=1)
    # The largest of V Gumbel variates is Gumbel around log(V).
    assert scipy.stats.kstest(best - np.log(151_936), "gumbel_r").pvalue > 0.01
    top = np.sort(values.ravel())[-2000:]
    assert len(np.unique(top)) > 0.995 * len(top)


@pytest.mark.parametrize("axis", ["seed", "position", "token"])
def test_neighbouring_seeds_positions_and_tokens_are_independent(axis: str) -> None:
    if axis == "seed":
        values = noise(list(range(400)), [5] * 400, vocab=500)
    elif axis == "position":
        values = noise([7] * 400, list(range(400)), vocab=500)
    else:
        values = noise([7] * 500, list(range(500)), vocab=400).T
    ranks = scipy.stats.rankdata(values.ravel()).reshape(values.shape)
    correlations = [np.corrcoef(ranks[:-lag].ravel(), ranks[lag:].ravel())[0, 1] for lag in (1, 2, 3, 16, 64)]
    assert np.abs(correlations).max() < 4.5 / np.sqrt(values.size)
    flips = (values[:-1] > 0.3665) == (values[1:] > 0.3665)  # 0.3665 is the median
    assert abs(flips.mean() - 0.5) < 4.5 * 0.5 / np.sqrt(flips.size)


def test_every_bit_of_the_seed_and_of_the_position_matters() -> None:
    plain = noise([0], [0], vocab=64)
    others = [noise([1 << bit], [0], vocab=64) for bit in range(64)]
    others += [noise([0], [1 << bit], vocab=64) for bit in range(31)]
    for other in others:
        assert abs(np.corrcoef(plain[0], other[0])[0, 1]) < 0.6
    assert len({other.tobytes() for other in others}) == len(others)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (Options(1.0), [0.5, 0.25, 0.125, 0.0625, 0.0625]),
        pytest.param(Options(0.5), np.array([64, 16, 4, 1, 1]) / 86, marks=pytest.mark.slow),
        pytest.param(Options(1.0, top_k=2), [2 / 3, 1 / 3, 0, 0, 0], marks=pytest.mark.slow),
        (Options(1.0, top_p=0.8), [4 / 7, 2 / 7, 1 / 7, 0, 0]),
        pytest.param(Options(1.0, min_p=0.2), [4 / 7, 2 / 7, 1 / 7, 0, 0], marks=pytest.mark.slow),
    ],
    ids=["plain", "temperature", "top_k", "top_p", "min_p"],
)
def test_tokens_have_the_frequencies_of_the_softmax(options: Options, expected: list[float]) -> None:
    draws = 8192
    logits = np.tile(np.log([8, 4, 2, 1, 1]).astype(np.float32), (draws, 1))
    kept, slots = device_state([options], vocab=5, padded=draws, logprobs=False)
    kept.slots[:], kept.positions[:] = 1, np.arange(draws)
    kept = dataclasses.replace(kept, count=np.int32(draws))
    tokens = np.asarray(run(Variant.FULL, logits, kept, slots, max_logprobs=1)[0].tokens)
    counts = np.bincount(tokens, minlength=5)
    possible = np.asarray(expected) > 0
    assert counts[~possible].sum() == 0
    assert scipy.stats.chisquare(counts[possible], np.asarray(expected)[possible] * draws).pvalue > 0.01
    pairs = np.histogram2d(tokens[::2], tokens[1::2], bins=(np.arange(6), np.arange(6)))[0][np.ix_(possible, possible)]
    assert scipy.stats.chi2_contingency(pairs).pvalue > 0.01


RECORDED = [
    [3.327872, 1.600931, 2.491333],
    [-0.2741848, 0.8942908, 2.026435],
    [1.486159, 1.737563, 0.52482],
]
