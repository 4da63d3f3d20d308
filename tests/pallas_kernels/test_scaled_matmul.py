"""Every backend of `scaled_matmul` and `grouped_scaled_matmul` on every case, and rows that do not depend on others."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from pallas_kernels import grouped_scaled_matmul, scaled_matmul
from pallas_kernels.grouped_scaled_matmul import OP as GROUPED
from pallas_kernels.scaled_matmul import OP
from pallas_kernels.testing import SCALED_CASES, ScaledCase

HIGHEST = jax.lax.Precision.HIGHEST


def backends(op):
    return [name for name in op.backends if name != "reference"]


def tolerance(case: ScaledCase) -> dict[str, float]:
    """In bfloat16 a matrix is off by 2^-9 of each number, of which products of some 60 add up."""
    return {"atol": 0.2, "rtol": 0.01} if case.compute == "bfloat16" else {"atol": 2e-4, "rtol": 1e-5}


@pytest.mark.parametrize("backend", backends(OP))
@pytest.mark.parametrize("case", SCALED_CASES, ids=str)
def test_every_backend_multiplies_alike(case: ScaledCase, backend: str) -> None:
    given = case.arguments()
    multiply = functools.partial(scaled_matmul, **case.options(), precision=HIGHEST)
    found = jax.jit(functools.partial(multiply, backend=backend))(*given)
    assert (found.shape, found.dtype) == ((*case.rows, case.outputs), jnp.float32)
    np.testing.assert_allclose(found, multiply(*given, backend="reference"), **tolerance(case))


@pytest.mark.parametrize("backend", backends(GROUPED))
@pytest.mark.parametrize("case", SCALED_CASES, ids=str)
def test_every_backend_multiplies_groups_alike(case: ScaledCase, backend: str) -> None:
    given = case.grouped_arguments()
    multiply = functools.partial(grouped_scaled_matmul, **case.options(), precision=HIGHEST)
    found = jax.jit(functools.partial(multiply, backend=backend))(*given)
    assert (found.shape, found.dtype) == ((sum(case.sizes) + case.behind, case.outputs), jnp.float32)
    real = slice(sum(case.sizes))
    expected = multiply(*given, backend="reference")
    np.testing.assert_allclose(found[real], expected[real], **tolerance(case))


@pytest.mark.parametrize("case", SCALED_CASES, ids=str)
def test_the_definition_is_the_matrix_written_out(case: ScaledCase) -> None:
    """One number after the other, in float64."""
    x, weight, scales, *zeros = (np.asarray(array.astype(jnp.float32), np.float64) for array in case.arguments())
    if len(weight) < case.outputs:
        bits = np.array([row % 16 if odd == 0 else row // 16 for row in weight for odd in (0, 1)], np.uint8)
        own = bits.view(ml_dtypes.float4_e2m1fn).astype(np.float64)
        weight = bits - 8.0 if case.weight == "int4" else own
    matrix = np.empty(weight.shape)
    for number in range(case.inputs):
        of = number // case.group
        matrix[:, number] = (weight[:, number] - (zeros[0][of] if zeros else 0)) * scales[of]
    found = scaled_matmul(*case.arguments(), **case.options(), backend="reference")
    np.testing.assert_allclose(found, x @ matrix.T, **tolerance(case))


@pytest.mark.parametrize("case", [SCALED_CASES[0], SCALED_CASES[4], SCALED_CASES[2]], ids=str)
def test_a_row_is_the_same_to_the_last_bit_beside_any_others_on_the_cpu(case: ScaledCase) -> None:
    x, *rest = case.arguments()
    multiply = jax.jit(functools.partial(scaled_matmul, **case.options(), platform="cpu"))
    whole = np.asarray(multiply(x, *rest))
    for rows in (slice(0, 1), slice(3, 5), slice(1, 4)):
        np.testing.assert_array_equal(np.asarray(multiply(x[rows], *rest)), whole[rows])


def test_rows_may_be_taken() -> None:
    x, *rest = SCALED_CASES[1].grouped_arguments()
    rows = np.random.default_rng(0).permutation(len(x)).astype(np.int32)
    multiply = functools.partial(grouped_scaled_matmul, **SCALED_CASES[1].options(), platform="cpu")
    found = multiply(x[np.argsort(rows)], *rest, rows=jnp.asarray(rows))
    real = slice(sum(SCALED_CASES[1].sizes))
    np.testing.assert_array_equal(np.asarray(found)[real], np.asarray(multiply(x, *rest))[real])


def test_what_does_not_fit_together_is_named() -> None:
    x, weight, scales, zeros = SCALED_CASES[1].arguments()
    options = SCALED_CASES[1].options()
    with pytest.raises(ValueError, match=r"axis I \(inputs\) differs: 64 in x, 63 in weight"):
        scaled_matmul(x, weight[:, :63], scales, **options)
    with pytest.raises(ValueError, match=r"axis K \(groups of 16 inputs\) differs: 3 in scales, 4 in inputs"):
        scaled_matmul(x, weight, scales[:3], **options)
    with pytest.raises(ValueError, match=r"zeros must have the shape of scales, \[4, 48\], got \[3, 48\]"):
        scaled_matmul(x, weight, scales, zeros[:3], **options)
    with pytest.raises(ValueError, match="a scaled matrix is of uint8, int8, float8_e4m3fn, float8_e5m2, got float32"):
        scaled_matmul(x, jnp.ones((48, 64)), scales, **options)
    with pytest.raises(ValueError, match="x must be of floating point"):
        scaled_matmul(x.astype(jnp.int32), weight, scales, **options)
