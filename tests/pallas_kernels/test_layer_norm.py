"""Layer norms of rows and of sums, by the definition and in C++."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import KernelUnsupported, layer_norm
from pallas_kernels.native import calling

EPSILON = 0.1


def numbers(*shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(shape[0]).normal(size=shape), jnp.float32)


def expected(x: Any, scale: Any = 1.0, bias: Any = 0.0) -> np.ndarray:
    wide = np.asarray(x, np.float64)
    normed = (wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + EPSILON)
    return normed * np.asarray(scale, np.float64) + np.asarray(bias, np.float64)


def normed(name: str | None, *given: jax.Array | None, **options: Any) -> np.ndarray:
    with calling(name):
        function = jax.jit(functools.partial(layer_norm, epsilon=EPSILON, platform="cpu"))
        assert ("ffi_call[" in str(jax.make_jaxpr(function)(*given, **options))) == (name is not None)
        return np.asarray(function(*given, **options))


@pytest.mark.parametrize("shape", [(30, 48), (7, 3, 100), (3, 128 << 10)], ids=str)
@pytest.mark.parametrize("library", [False, True], ids=["definition", "C++"])
def test_rows_are_without_mean_over_their_deviation(native: str, library: bool, shape: tuple[int, ...]) -> None:
    """Of sizes that fill no vector, and of rows for several tasks; a row beside none as beside others."""
    name = native if library else None
    x, added, scale, bias = numbers(*shape), numbers(*shape) * 2 + 1, numbers(shape[-1]), numbers(shape[-1]) + 1
    np.testing.assert_allclose(normed(name, x), expected(x), atol=2e-5)
    np.testing.assert_allclose(normed(name, x, scale), expected(x, scale), atol=2e-5)
    narrow = scale.astype(jnp.bfloat16), bias.astype(jnp.bfloat16)
    np.testing.assert_allclose(normed(name, x, *narrow), expected(x, *narrow), atol=2e-5)
    whole = normed(name, x, scale, bias, added=added)
    both = np.asarray(x, np.float64) + np.asarray(added)
    np.testing.assert_allclose(whole, expected(both, scale, bias), atol=2e-5)
    np.testing.assert_array_equal(normed(name, x[1:2], scale, bias, added=added[1:2]), whole[1:2])


@pytest.mark.parametrize("used", [0, 11, 30, 31])
def test_rows_that_are_not_used_are_not_made(native: str, used: int) -> None:
    x, scale = numbers(30, 48), numbers(48)
    whole, found = normed(native, x, scale), normed(native, x, scale, used=jnp.int32(used))
    np.testing.assert_array_equal(found[:used], whole[:used])
    np.testing.assert_array_equal(found[used:], 0.0)
    np.testing.assert_array_equal(normed(None, x, scale, used=jnp.int32(used))[:used], normed(None, x, scale)[:used])


def test_what_does_not_fit_is_named(native: str) -> None:
    x = numbers(2, 8)
    with pytest.raises(ValueError, match=r"axis E \(numbers\) differs: 8 in x, 8 in scale, 7 in bias"):
        layer_norm(x, numbers(8), numbers(7), epsilon=EPSILON)
    with pytest.raises(ValueError, match=r"added must have the shape of x, \[2, 8\], got \[1, 8\]"):
        layer_norm(x, added=x[:1], epsilon=EPSILON)
    with pytest.raises(ValueError, match=r"x must be of floating point with two axes or more, got float32\[8\]"):
        layer_norm(x[0], epsilon=EPSILON)
    with pytest.raises(KernelUnsupported, match="no library is registered"):
        layer_norm(x, epsilon=EPSILON, backend="native")
    with calling(native):
        with pytest.raises(KernelUnsupported, match="x, the result and what is added are float32, bfloat16"):
            layer_norm(x, epsilon=EPSILON, dtype=jnp.bfloat16, backend="native")
        with pytest.raises(KernelUnsupported, match="not both float32 or bfloat16"):
            layer_norm(x, numbers(8), numbers(8).astype(jnp.bfloat16), epsilon=EPSILON, backend="native")
