"""Products with matrices in panels, and norms of sums, in C++ against their definitions; a row's bits are its own."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import KernelUnsupported, packed_matmul, packed_shape
from pallas_kernels.native import PACKED_PRODUCT, calling, registered_name
from pallas_kernels.packed_matmul.reference import unpacked
from tests.quick import slow_but

KINDS = ("float32", "bfloat16")
INPUTS = 1100  # several blocks of a panel in float32
ROWS = 210  # two tasks


@functools.cache
def matrix(kind: str, outputs: int, inputs: int = INPUTS) -> jax.Array:
    """In panels, of numbers whose products have sums near one."""
    plain = np.random.default_rng(outputs).normal(size=(outputs, inputs), scale=inputs**-0.5).astype(np.float32)
    panels, steps, columns, *together = packed_shape(outputs, inputs, kind) or ()
    return jnp.asarray(plain.reshape(panels, columns, steps, *together).swapaxes(1, 2), kind)


def numbers(*shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(shape[0]).normal(size=shape), jnp.float32)


def products(
    x: jax.Array,
    kind: str,
    *,
    name: str | None = None,
    outputs: tuple[int, ...] = (128, 64),
    activation: str | None = None,
    used: int | None = None,
) -> list[np.ndarray]:
    """Of two matrices, the first with a bias."""
    matrices = [matrix(kind, count, x.shape[1]) for count in outputs]
    biases = [numbers(outputs[0]), *(None,) * (len(outputs) - 1)]
    with calling(name):
        multiply = jax.jit(
            lambda x, used: packed_matmul(
                x, matrices, biases, activation=activation, used=used, platform="cpu" if name else None
            )
        )
        return [np.asarray(found) for found in multiply(x, None if used is None else jnp.int32(used))]


def test_the_definition_is_the_product_of_the_plain_matrix() -> None:
    x = numbers(3, 64)
    for kind in KINDS:
        plain = np.asarray(unpacked(matrix(kind, 128, 64)).astype(jnp.float32))
        # of the panel 4, column 5, input 9
        lain = np.asarray(matrix(kind, 128, 64).astype(jnp.float32))
        assert plain[69, 9] == (lain[4, 9, 5] if kind == "float32" else lain[4, 4, 5, 1])
        rounded = np.asarray(x.astype(kind).astype(jnp.float32))
        expected = rounded @ plain.T + np.asarray(numbers(128))
        found, _ = products(x, kind)
        np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("activation", slow_but([None, "gelu"], {"gelu"}))
@pytest.mark.parametrize("rows", slow_but([1, 7, ROWS], {7, ROWS}))
def test_native_is_the_definition(native: str, kind: str, activation: str | None, rows: int) -> None:
    x = numbers(rows, INPUTS)
    expected = products(x, kind, activation=activation)
    for found, of_definition in zip(products(x, kind, name=native, activation=activation), expected, strict=True):
        np.testing.assert_allclose(found, of_definition, atol=2e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_is_the_same_to_the_last_bit_beside_any_others(native: str, kind: str) -> None:
    x = numbers(ROWS, INPUTS)
    whole, other = products(x, kind, name=native, activation="gelu")
    for some in ([209], [3, 100], list(range(5)), list(range(90, 103)), list(range(200))):
        found, _ = products(x[np.array(some)], kind, name=native, activation="gelu")
        np.testing.assert_array_equal(found, whole[some])
    [alone] = products(x, kind, name=native, activation="gelu", outputs=(128,))
    np.testing.assert_array_equal(alone, whole)
    assert other.shape == (ROWS, 64)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("used", [0, 9, 41])
def test_rows_that_are_not_used_are_not_multiplied(native: str, kind: str, used: int) -> None:
    x = numbers(40, 64)
    whole = products(x, kind, name=native)
    found = products(x.at[used:].set(np.nan), kind, name=native, used=used)
    for some, of_all in zip(found, whole, strict=True):
        np.testing.assert_array_equal(some[:used], of_all[:used])
        np.testing.assert_array_equal(some[used:], 0.0)


def test_what_does_not_fit(native: str) -> None:
    assert packed_shape(100, 64, "float32") is None
    assert packed_shape(128, 63, "bfloat16") is None
    assert packed_shape(128, 63, "float32") == (8, 63, 16)
    assert packed_shape(128, 64, "float16") is None
    x = numbers(2, 64)
    with pytest.raises(ValueError, match="has no panels of 64 inputs"):
        packed_matmul(x, [matrix("float32", 64)], [None])
    with pytest.raises(ValueError, match="activation must be one of"):
        packed_matmul(x, [matrix("float32", 64, 64)], [None], activation="silu")
    with pytest.raises(KernelUnsupported, match="no library is registered"):
        packed_matmul(x, [matrix("float32", 64, 64)], [None], backend="native")
    results = (jax.ShapeDtypeStruct((2, 64), jnp.float32), jax.ShapeDtypeStruct((3,), jnp.bfloat16))
    call = jax.ffi.ffi_call(registered_name(PACKED_PRODUCT, native), results)
    none = jnp.zeros(0, jnp.float32)
    with pytest.raises(jax.errors.JaxRuntimeError, match="scratch do not fit"):
        jax.block_until_ready(call(x, jnp.int32(2), matrix("bfloat16", 64, 64), none, gelu=False))
