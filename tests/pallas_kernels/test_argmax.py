"""Which value of a row is the largest: all backends beside NumPy's words, and what is no number, infinite or equal."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import KernelUnsupported, argmax
from pallas_kernels.native import ARGMAX, calling, registered_name

NAN, INF = np.nan, np.inf


@pytest.mark.parametrize("size", [1, 5, 16, 67, 4099])
def test_it_is_the_first_of_the_largest(native: str, size: int) -> None:
    generator = np.random.default_rng(size)
    values = np.round(generator.normal(0, 1, (300, size)), 1).astype(np.float32)  # with equal ones
    expected = values.argmax(1)
    with calling(native):
        calls = jax.jit(lambda values: argmax(values, at_most=1e30, platform="cpu"))
        assert registered_name(ARGMAX, native) in calls.lower(values).as_text()
        np.testing.assert_array_equal(calls(values), expected)
    for backend in ("reference", "cpu"):
        np.testing.assert_array_equal(argmax(jnp.asarray(values[:9]), at_most=1e30, backend=backend), expected[:9])


@pytest.mark.parametrize("count", [0, 1, 3, 4])
def test_rows_that_count_are_found_beside_padding(native: str, count: int) -> None:
    values = jnp.asarray(np.eye(4, 21, 17, dtype=np.float32))
    with calling(native):
        for backend in ("reference", "cpu", "native"):
            found = jax.jit(lambda used, name=backend: argmax(values, at_most=1.0, count=used, backend=name))(count)
            assert found[:count].tolist() == [17, 18, 19, 20][:count]
            assert found.shape == (4,)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ([NAN, 1.0, NAN, 2.0], 3),
        ([-INF, NAN, -3e38, -INF], 2),
        ([1.0, 2e30, INF, 3e30], 1),
        ([9e29, 1.0, 2.0, INF], 3),
        ([-1.0, -0.0, 0.0, -2.0], 1),
        ([-1.0, 0.0, -0.0, -2.0], 1),
        ([NAN, NAN, NAN, NAN], None),
        ([-INF, -INF, -INF, -INF], None),
    ],
)
@pytest.mark.parametrize("before", [0, 19])
def test_what_is_no_finite_number_has_a_place(native: str, row: list[float], expected: int | None, before: int) -> None:
    values = np.array([[-INF] * before + row + [NAN] * 3], np.float32)
    expected = 0 if expected is None else before + expected
    with calling(native):
        named = jax.jit(lambda values: argmax(values, at_most=1e30, backend="native"))(values)
    plain = argmax(jnp.asarray(values), at_most=1e30, backend="reference")
    assert (named.tolist(), plain.tolist()) == ([expected], [expected])


def test_what_does_not_fit_is_named() -> None:
    with pytest.raises(ValueError, match="values must have axes"):
        argmax(jnp.zeros(3), at_most=1.0)
    for wrong in (jnp.zeros((2, 3), jnp.int32), jnp.zeros((2, 0))):
        with pytest.raises(ValueError, match="values must be float32, one of each row or more"):
            argmax(wrong, at_most=1.0)
    with pytest.raises(KernelUnsupported, match="no library is registered"):
        argmax(jnp.zeros((2, 3)), at_most=1.0, backend="native")
