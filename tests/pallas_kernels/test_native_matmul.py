"""The CPU's products in C++: bits that depend on nothing beside a row, each set of instructions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxengine.startup.native import register_native
from pallas_kernels import matmul, matmul_each
from pallas_kernels.native import FLOAT32_PRODUCT, INT8_PRODUCT, PRODUCT, calling, registered_name
from tests.pallas_kernels.instructions import INSTRUCTIONS
from xla_cache.library import NoCompilerError

KINDS = ("bfloat16", "float32", "int8")
OUTPUTS = 150  # several tasks, and outputs that fill no tile


@functools.cache
def weights(kind: str, inputs: int) -> tuple[jax.Array, jax.Array | None]:
    generator = np.random.default_rng(inputs)
    if kind == "int8":
        integers = generator.integers(-128, 128, size=(OUTPUTS, inputs))
        return jnp.asarray(integers, jnp.int8), jnp.asarray(generator.uniform(0.001, 0.1, size=OUTPUTS), jnp.float32)
    return jnp.asarray(generator.normal(size=(OUTPUTS, inputs)), kind), None


@functools.cache
def rows(count: int, inputs: int) -> np.ndarray:
    return np.random.default_rng(count).normal(size=(count, inputs)).astype(np.float32)


def product(name: str, kind: str, x: np.ndarray) -> np.ndarray:
    weight, scales = weights(kind, x.shape[1])
    with calling(name):
        return np.asarray(multiplier(name)(x, weight, scales))


@functools.cache
def multiplier(name: str) -> Callable[..., jax.Array]:
    """What is called with one library: it is asked with equal shapes many times."""
    return jax.jit(lambda x, weight, scales: matmul(x, weight, scales=scales, platform="cpu"))


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=20, deadline=None)
@given(count=st.integers(1, 70), inputs=st.sampled_from([64, 99, 1100, 2048, 3100]), data=st.data())
def test_a_row_is_the_same_to_the_last_bit_beside_any_others(
    native: str, kind: str, count: int, inputs: int, data: st.DataObject
) -> None:
    x = rows(70, inputs)
    chosen = data.draw(st.permutations(range(70)))[:count]
    np.testing.assert_array_equal(product(native, kind, x[chosen]), product(native, kind, x)[chosen])


@pytest.mark.parametrize("kind", KINDS)
def test_thousands_of_rows_are_those_of_one(native: str, kind: str) -> None:
    x = rows(4096, 64)
    whole = product(native, kind, x)
    for row in (0, 1, 2047, 4095):
        np.testing.assert_array_equal(product(native, kind, x[[row]])[0], whole[row])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, 3, 8, 40])
def test_matrices_of_one_input_give_together_what_each_gives(native: str, kind: str, count: int) -> None:
    """Of several sizes: one that fills no tile, one of several tasks."""
    weight, scales = weights(kind, 1100)
    cut = [slice(0, 3), slice(3, 150), slice(40, 104)]
    each = [(weight[part], None if scales is None else scales[part]) for part in cut]

    def multiply(x: jax.Array) -> tuple[jax.Array, ...]:
        matrices, of_each = zip(*each, strict=True)
        return matmul_each(x, matrices, scales=of_each, platform="cpu")

    x = rows(count, 1100)
    with calling(native):
        assert str(jax.make_jaxpr(multiply)(x)).count("ffi_call[") == 1
        together = jax.jit(multiply)(x)
    for found, part in zip(together, cut, strict=True):
        np.testing.assert_array_equal(found, product(native, kind, x)[:, part])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("used", [0, 1, 9, 40, 41])
def test_rows_that_are_not_used_are_not_multiplied(native: str, kind: str, used: int) -> None:
    """More than there are is all; what is not a number in the padding harms nobody."""
    weight, scales = weights(kind, 99)
    x = rows(40, 99).copy()
    whole = product(native, kind, x)
    x[used:] = np.nan
    with calling(native):
        multiply = jax.jit(lambda x, used: matmul(x, weight, scales=scales, used=used, platform="cpu"))
        found = np.asarray(multiply(x, jnp.int32(used)))
    np.testing.assert_array_equal(found[:used], whole[:used])
    np.testing.assert_array_equal(found[used:], 0.0)


def test_matrices_of_several_types_are_multiplied_apart(native: str) -> None:
    each = [weights(kind, 64)[0] for kind in ("bfloat16", "float32")]
    with calling(native):
        found = matmul_each(jnp.asarray(rows(2, 64)), each, scales=(None, None), platform="cpu")
    for products, kind in zip(found, ("bfloat16", "float32"), strict=True):
        np.testing.assert_array_equal(products, product(native, kind, rows(2, 64)))


@pytest.mark.slow
@pytest.mark.parametrize("instructions", INSTRUCTIONS)
def test_every_set_of_instructions_multiplies_alike(
    native: str, instructions: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXXFLAGS", f"-march={instructions}")
    try:
        other, _ = register_native(tmp_path, symbols=[PRODUCT, FLOAT32_PRODUCT, INT8_PRODUCT])
    except NoCompilerError as error:
        pytest.skip(f"this compiler knows no {instructions}: {error}")
    assert other != native
    for kind in KINDS:
        x = rows(43, 1100)
        np.testing.assert_allclose(product(other, kind, x), product(native, kind, x), atol=1e-3, rtol=1e-5)
        np.testing.assert_array_equal(product(other, kind, x[[5]])[0], product(other, kind, x)[5])


@pytest.mark.parametrize("kind", ["bfloat16", "float32"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_stays_in_its_row(native: str, kind: str, bad: float) -> None:
    x = rows(8, 99).copy()
    x[3, 98] = bad
    found = product(native, kind, x)
    assert not np.isfinite(found[3]).any()
    np.testing.assert_array_equal(np.delete(found, 3, 0), product(native, kind, np.delete(x, 3, 0)))


def test_only_where_it_was_asked_for_is_it_chosen(native: str) -> None:
    weight, _ = weights("bfloat16", 64)
    x = jax.ShapeDtypeStruct((1, 64), jnp.float32)

    def traced(platform: str) -> str:
        return str(jax.make_jaxpr(lambda x: matmul(x, weight, platform=platform))(x))

    assert "ffi_call" not in traced("cpu")
    with calling(native):
        assert native in traced("cpu")
        assert "ffi_call" not in traced("tpu")
        with calling(None):
            assert "ffi_call" not in traced("cpu")


def test_arguments_that_do_not_fit_are_refused(native: str) -> None:
    weight, _ = weights("bfloat16", 64)
    results = (jax.ShapeDtypeStruct((2, OUTPUTS), jnp.float32), jax.ShapeDtypeStruct((4,), jnp.uint8))
    call = jax.ffi.ffi_call(registered_name(PRODUCT, native), results)
    with pytest.raises(jax.errors.JaxRuntimeError, match="scratch do not fit"):
        jax.block_until_ready(call(jnp.ones((2, 64), jnp.bfloat16), jnp.int32(2), weight, jnp.zeros(0, jnp.float32)))
