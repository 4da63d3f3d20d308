"""Rows over their root mean square, by the definition and in C++."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import KernelUnsupported, rms_norm
from pallas_kernels.native import calling
from tests.quick import slow_but

EPSILON = 0.1


def numbers(*shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(shape[0]).normal(size=shape), jnp.float32)


def expected(x: jax.Array, factors: Any) -> np.ndarray:
    wide = np.asarray(x, np.float64)
    return wide / np.sqrt((wide**2).mean(axis=-1, keepdims=True) + EPSILON) * np.asarray(factors, np.float64)


def normed(name: str | None, x: jax.Array, scale: jax.Array | None = None, **options: Any) -> np.ndarray:
    with calling(name):
        function = jax.jit(functools.partial(rms_norm, epsilon=EPSILON, platform="cpu", **options))
        assert ("ffi_call[" in str(jax.make_jaxpr(function)(x, scale))) == (name is not None)
        return np.asarray(function(x, scale))


@pytest.mark.parametrize(
    "shape", slow_but([(1, 5), (20, 100), (7, 3, 64), (3, 128 << 10)], {(1, 5), (3, 128 << 10)}), ids=str
)
@pytest.mark.parametrize("library", [False, True], ids=["definition", "C++"])
def test_rows_are_divided_by_their_root_mean_square(native: str, library: bool, shape: tuple[int, ...]) -> None:
    """Of sizes that fill no vector, and of rows for several tasks."""
    name = native if library else None
    x, scale = numbers(*shape), numbers(shape[-1])
    narrow = scale.astype(jnp.bfloat16)
    np.testing.assert_allclose(normed(name, x), expected(x, 1), rtol=1e-5)
    for of in (scale, narrow):
        np.testing.assert_allclose(normed(name, x, of), expected(x, of), rtol=1e-5)
        np.testing.assert_allclose(normed(name, x, of, offset=1.0), expected(x, 1 + of.astype(float)), rtol=1e-5)


@pytest.mark.parametrize("library", [False, True], ids=["definition", "C++"])
def test_a_row_is_the_same_to_the_last_bit_beside_any_others(native: str, library: bool) -> None:
    name = native if library else None
    x, scale = numbers(70, 200), numbers(200)
    whole = normed(name, x, scale)
    for rows in (slice(1), slice(3, 5), slice(60, 69)):
        np.testing.assert_array_equal(normed(name, x[rows], scale), whole[rows])


def test_a_norm_is_rounded_before_it_is_scaled_but_for_an_offset() -> None:
    x, scale = numbers(4, 64), numbers(64).astype(jnp.bfloat16)
    plain = rms_norm(x, epsilon=EPSILON)
    given = {"epsilon": EPSILON, "dtype": jnp.bfloat16}
    np.testing.assert_array_equal(rms_norm(x, scale, **given), plain.astype(jnp.bfloat16) * scale)
    whole = (plain * (1 + scale.astype(jnp.float32))).astype(jnp.bfloat16)
    np.testing.assert_array_equal(rms_norm(x, scale, offset=1.0, **given), whole)


def test_what_does_not_fit_is_named(native: str) -> None:
    x = numbers(2, 8)
    with pytest.raises(ValueError, match=r"axis E \(numbers\) differs: 8 in x, 7 in scale"):
        rms_norm(x, numbers(7), epsilon=EPSILON)
    with pytest.raises(ValueError, match=r"x must be of floating point with two axes or more, got int32\[2, 8\]"):
        rms_norm(x.astype(jnp.int32), epsilon=EPSILON)
    with pytest.raises(KernelUnsupported, match="no library is registered"):
        rms_norm(x, epsilon=EPSILON, backend="native")
    with calling(native):
        with pytest.raises(KernelUnsupported, match="x is float32 and the result bfloat16"):
            rms_norm(x, epsilon=EPSILON, dtype=jnp.bfloat16, backend="native")
        with pytest.raises(KernelUnsupported, match="scale is float16"):
            rms_norm(x, numbers(8).astype(jnp.float16), epsilon=EPSILON, backend="native")
