"""Inverse roots, that do not depend on the numbers beside them."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import inverse_root
from pallas_kernels.inverse_root import OP


@pytest.mark.parametrize("backend", OP.backends)
@pytest.mark.parametrize("shape", [(), (1,), (5, 1), (3, 2, 16)], ids=str)
def test_every_backend_is_within_a_rounding_or_two(shape: tuple[int, ...], backend: str) -> None:
    x = np.random.default_rng(0).uniform(1e-6, 100, size=shape).astype(np.float32)
    found = jax.jit(functools.partial(inverse_root, backend=backend))(x)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, 1 / np.sqrt(x.astype(np.float64)), rtol=3e-7)


def test_on_the_cpu_a_result_is_rounded_from_an_exact_root() -> None:
    """And so says nothing of how many there were or what XLA made of the code around them."""
    x = np.random.default_rng(0).uniform(1e-6, 100, size=(999, 1)).astype(np.float32)
    found = jax.jit(lambda x: inverse_root(x / 16 + 1e-6, platform="cpu"))(x)
    np.testing.assert_array_equal(found, np.float32(1) / np.sqrt(x / np.float32(16) + np.float32(1e-6)))


def test_other_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="x must be float32, got bfloat16"):
        inverse_root(jnp.ones(3, jnp.bfloat16))
