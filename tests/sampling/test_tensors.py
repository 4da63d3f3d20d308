"""The layout of a sampling program's inputs."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from jaxengine.sampling import Variant, neutral, seed_words, spec
from jaxengine.sampling_params import MAX_LOGIT_BIAS


@pytest.mark.parametrize("variant", list(Variant))
def test_neutral_arrays_have_the_shapes_of_the_spec(variant: Variant) -> None:
    arrays, shapes = neutral(variant, 3, 65, 7), spec(variant, 3, 65, 7)
    assert jax.tree.structure(arrays) == jax.tree.structure(shapes)
    described = jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), arrays)
    assert described == jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), shapes)


def test_the_greedy_variant_has_no_inputs() -> None:
    assert jax.tree.leaves(neutral(Variant.GREEDY, 8, 1000, 100)) == []


def test_the_random_variant_sends_few_bytes_and_the_full_one_holds_every_option() -> None:
    assert sum(leaf.nbytes for leaf in jax.tree.leaves(neutral(Variant.RANDOM, 1, 151_936, 4096))) == 32
    full = neutral(Variant.FULL, 1, 65, 7)
    assert full.history.shape == (1, 7)
    assert full.bias_ids.shape == full.bias_values.shape == (1, MAX_LOGIT_BIAS)
    assert full.allowed.shape == (1, 3)
    assert (full.allowed == 0xFFFFFFFF).all()


@pytest.mark.parametrize("seed", [0, 1, 2**32, 2**63 - 1, -1, -(2**63), 2**64 - 1])
def test_seeds_of_64_bits_survive_in_two_words(seed: int) -> None:
    high, low = seed_words(seed)
    assert (high << 32 | low) == seed % 2**64
    assert np.array([high, low], np.uint32).tolist() == [high, low]
