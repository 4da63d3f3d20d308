"""Means of rows, that do not depend on the rows beside them."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import mean_last
from pallas_kernels.mean_last import OP


@pytest.mark.parametrize("backend", OP.backends)
@pytest.mark.parametrize("shape", [(1, 64), (5, 100), (1, 3, 16), (4, 2, 16)], ids=str)
def test_every_backend_means_the_mean(shape: tuple[int, ...], backend: str) -> None:
    x = np.random.default_rng(0).normal(3.0, 1.0, size=shape).astype(np.float32)
    found = jax.jit(functools.partial(mean_last, backend=backend))(x)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, x.astype(np.float64).mean(-1, keepdims=True), rtol=1e-6)


@pytest.mark.parametrize("size", [64, 100, 256])
def test_a_mean_is_the_same_to_the_last_bit_beside_any_others(size: int) -> None:
    x = np.random.default_rng(size).normal(size=(33, size)).astype(np.float32)
    mean = jax.jit(functools.partial(mean_last, platform="cpu"))
    whole = np.asarray(mean(x))
    for rows in (1, 2, 3, 4, 7, 16, 17):
        np.testing.assert_array_equal(np.asarray(mean(x[:rows])), whole[:rows])


def test_other_arrays_are_refused() -> None:
    with pytest.raises(ValueError, match=r"float32 with two axes or more, got bfloat16\[2, 8\]"):
        mean_last(jnp.ones((2, 8), jnp.bfloat16))
    with pytest.raises(ValueError, match=r"two axes or more, got float32\[8\]"):
        mean_last(jnp.ones(8))
