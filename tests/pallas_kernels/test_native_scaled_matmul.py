"""The CPU's products with scaled matrices in C++: near the exact ones, and float8's with the dense matrix' bits."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxengine.startup.native import register_native
from pallas_kernels import KernelUnsupported, scaled_matmul, scaled_matmul_each
from pallas_kernels.native import PRODUCT, SCALED_PRODUCT, calling, registered_name
from pallas_kernels.scaled_matmul.dense import dense_rows, floats, numbers
from pallas_kernels.scaled_matmul.native import rounding
from pallas_kernels.scaled_matmul.packed import packed
from pallas_kernels.testing import SCALED_CASES, ScaledCase
from tests.pallas_kernels.test_native_matmul import INSTRUCTIONS
from tests.quick import at_once, rare_but
from xla_cache.library import NoCompilerError

LONG = ScaledCase(
    name="several blocks and tasks",
    reason="",
    group=32,
    zeros=True,
    inputs=3200,
    outputs=210,
    rows=(70,),
    scale="bfloat16",
)
LONG_FLOAT4 = dataclasses.replace(LONG, name="MXFP4", weight="float4_e2m1fn", zeros=False, compute="bfloat16")
CASES = tuple(
    dataclasses.replace(case, compute="bfloat16")
    for case in (
        *SCALED_CASES,
        dataclasses.replace(LONG, name="few rows", rows=(2,)),
        dataclasses.replace(LONG, name="one row", weight="float4_e2m1fn", zeros=False, rows=(1,)),
        dataclasses.replace(LONG, name="bytes, few rows", scale="uint8", rows=(3,)),
        dataclasses.replace(LONG, name="bytes, many rows", scale="uint8"),
        LONG,
        dataclasses.replace(LONG, name="float8, several blocks", weight="float8_e4m3fn", group=128, zeros=False),
        dataclasses.replace(LONG, name="float8_e5m2", weight="float8_e5m2", group=100, zeros=False, inputs=333),
        dataclasses.replace(LONG, name="int8, one group and zeros", weight="int8", group=3200),
    )
)


def product(name: str, case: ScaledCase, backend: str, *arguments: Any) -> np.ndarray:
    with calling(name):
        return np.asarray(multiplier(name, case, backend)(*arguments))


@functools.cache
def multiplier(name: str, case: ScaledCase, backend: str) -> Callable[..., jax.Array]:
    """What is called with one library: each is asked with equal shapes many times."""
    return jax.jit(functools.partial(scaled_matmul, **case.options(), backend=backend))


FLOAT8 = [case for case in CASES if case.weight.startswith("float8")]
INTEGERS = [case for case in CASES if case not in FLOAT8]


@pytest.mark.parametrize("case", FLOAT8, ids=str)
def test_bits_of_float8_are_those_of_the_product_with_the_dense_matrix(native: str, case: ScaledCase) -> None:
    given = case.arguments()
    found = product(native, case, "native", *given)
    np.testing.assert_array_equal(found, product(native, case, "cpu", *given))
    expected = product(native, case, "reference", *given)
    np.testing.assert_allclose(found, expected, rtol=0.01, atol=0.01 * np.abs(expected).max())


@pytest.mark.parametrize("outliers", [False, True], ids=["", "outliers"])
@pytest.mark.parametrize("case", INTEGERS, ids=str)
def test_an_error_beside_rounded_rows_is_what_sums_lose(native: str, case: ScaledCase, outliers: bool) -> None:
    """Of sums what float32 rounds; matrices are as they are kept."""
    x, weight, scales, *zeros = map(np.array, case.arguments())
    if outliers:
        x[..., ::37] *= 1000
    found = product(native, case, "native", x, weight, scales, *zeros)
    group = np.arange(case.inputs) // case.group
    of_inputs = [np.asarray(at_once(floats, array), np.float64)[group].T for array in (scales, *zeros)]
    integers = np.asarray(at_once(numbers, weight, pairs=case.options().get("pairs", "int4")), np.float64)
    matrix = (integers - (of_inputs[1] if zeros else 0)) * of_inputs[0]
    exact = x.astype(jnp.bfloat16).astype(np.float32)
    rows = rounded(exact, case.group, *rounding(weight.dtype))
    magnitudes = (np.abs(integers) + 16 + (np.abs(of_inputs[1]) if zeros else 0)) * np.abs(of_inputs[0])
    assert (np.abs(found - rows @ matrix.T) <= np.abs(rows) @ magnitudes.T * 1e-6).all()
    steps = 254 if weight.dtype == np.uint8 else 2**15
    assert (np.abs(rows - exact) <= np.abs(exact).max(axis=-1, keepdims=True) / steps * (1 + 1e-4)).all()


def rounded(rows: np.ndarray, group: int, block: int, bits: int) -> np.ndarray:
    """What rows of float32 stand for: of each block of a group the nearest of its steps."""
    found = np.empty(rows.shape)
    firsts = [start for first in range(0, rows.shape[-1], group) for start in range(first, first + group, block)]
    for first, end in itertools.pairwise([*(first for first in firsts if first < rows.shape[-1]), rows.shape[-1]]):
        some = rows[..., first:end].astype(np.float64)
        most = np.abs(some).max(axis=-1, keepdims=True).astype(np.float32)
        if bits == 8:
            step, factor = most * np.float32(1 / 127), np.float32(127) / most
        else:  # the largest has 15 bits
            step = np.exp2(np.floor(np.log2(most.astype(np.float64))) - 14)
            factor = 1 / step
        found[..., first:end] = np.rint(some * factor) * step
    return found


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_is_its_row_s_alone(native: str, bad: float) -> None:
    x, *rest = LONG.arguments()
    x = x.at[3].set(0)
    whole = product(native, CASES[-4], "native", x, *rest)
    assert not whole[3].any()
    found = product(native, CASES[-4], "native", x.at[5, 7].set(bad), *rest)
    assert np.isnan(found[5]).all()
    np.testing.assert_array_equal(np.delete(found, 5, 0), np.delete(whole, 5, 0))


@pytest.mark.parametrize("group", [16, 256], ids=["scaled", "one group"])
@pytest.mark.parametrize("kind", ["int8", "float8_e4m3fn", "float8_e5m2", "int4", "float4_e2m1fn"])
def test_each_number_is_what_its_type_says(native: str, kind: str, group: int) -> None:
    """All bytes as one output's inputs, one after the other multiplied by one; float8's NaNs and infinities among them."""
    every = jnp.arange(256, dtype=jnp.uint8)[None]
    weight = every if kind in ("int4", "float4_e2m1fn") else jax.lax.bitcast_convert_type(every, jnp.dtype(kind))
    case = ScaledCase(name=kind, reason="", weight=kind, group=group, compute="bfloat16")
    scales = jnp.full((256 // group, 2 if weight.dtype == jnp.uint8 else 1), 0.3, jnp.float32)
    x = jnp.eye(256, dtype=jnp.float32)
    # of float8 the matrix is rounded to bfloat16, of others it is not
    other = "cpu" if kind.startswith("float8") else "reference"
    found, expected = (product(native, case, backend, x, weight, scales) for backend in ("native", other))
    bad = ~np.isfinite(np.asarray(weight.astype(jnp.float32))[0])  # zero times what is not finite is not a number
    if bad.any():
        assert np.isnan(found[~bad]).all()
        return
    np.testing.assert_allclose(
        found, expected, rtol=2e-7 if weight.dtype == jnp.uint8 else 0
    )  # 127 of the 127th of one
    assert len(np.unique(found)) >= (15 if weight.dtype == jnp.uint8 else 200)


@pytest.mark.parametrize("case", [LONG_FLOAT4, *CASES[-4:]], ids=str)
@settings(max_examples=10, deadline=None)
@given(count=st.integers(1, 70), data=st.data())
def test_a_row_is_the_same_to_the_last_bit_beside_any_others(
    native: str, case: ScaledCase, count: int, data: st.DataObject
) -> None:
    x, *rest = map(np.asarray, case.arguments())
    chosen = np.asarray(data.draw(st.permutations(range(70)))[:count])
    whole = product(native, case, "native", x, *rest)
    np.testing.assert_array_equal(product(native, case, "native", x[chosen], *rest), whole[chosen])


@pytest.mark.parametrize("used", [0, 1, 9, 70, 71])
@pytest.mark.parametrize("case", [LONG_FLOAT4, CASES[-4], CASES[-3]], ids=str)
def test_rows_that_are_not_used_are_not_multiplied(native: str, case: ScaledCase, used: int) -> None:
    """More than there are is all; what is not a number in the padding harms nobody."""
    x, weight, scales, zeros = (*case.arguments(), None)[:4]
    whole = product(native, case, "native", x, weight, scales, zeros)
    multiply = functools.partial(scaled_matmul_each, **case.options(), platform="cpu")
    with calling(native):
        (found,) = jax.jit(lambda x, used: multiply(x, [weight], [scales], [zeros], [None], used=used))(
            jnp.asarray(x).at[used:].set(np.nan), jnp.int32(used)
        )
    np.testing.assert_array_equal(found[:used], whole[:used])
    np.testing.assert_array_equal(found[used:], 0.0)


@pytest.mark.parametrize("case", [LONG_FLOAT4, *CASES[-4:]], ids=str)
def test_matrices_of_one_input_give_together_what_each_gives(native: str, case: ScaledCase) -> None:
    """Of several sizes, of which one fills no tile."""
    x, weight, *of_groups = case.arguments()
    bytes_each = len(weight) / case.outputs
    cut = [slice(0, 2), slice(2, 150), slice(40, 104)]
    each = [
        (weight[int(part.start * bytes_each) : int(part.stop * bytes_each)], *(array[:, part] for array in of_groups))
        for part in cut
    ]
    matrices, scales, *zeros = zip(*each, strict=True)

    def multiply(x: jax.Array) -> tuple[jax.Array, ...]:
        subtracted = zeros[0] if zeros else [None for _ in cut]
        factors = [None for _ in cut]
        return scaled_matmul_each(x, matrices, scales, subtracted, factors, **case.options(), platform="cpu")

    with calling(native):
        assert str(jax.make_jaxpr(multiply)(x)).count("ffi_call[") == 1
        together = jax.jit(multiply)(x)
    whole = product(native, case, "native", x, weight, *of_groups)
    for found, part in zip(together, cut, strict=True):
        np.testing.assert_array_equal(found, whole[:, part])


@pytest.mark.parametrize("outputs", ["one", "each"])
@pytest.mark.parametrize("case", [LONG_FLOAT4, *CASES[-4:]], ids=str)
def test_sums_are_multiplied_by_factors(native: str, case: ScaledCase, outputs: str) -> None:
    """As whoever takes no factors has them multiplied behind it."""
    x, weight, scales, zeros = (*case.arguments(), None)[:4]
    factors = 1 + jnp.arange(1 if outputs == "one" else case.outputs, dtype=jnp.float32) / 7
    plain = product(native, case, "native", *case.arguments())
    found = product(native, case, "native", x, weight, scales, zeros, factors)
    np.testing.assert_allclose(found, plain * np.asarray(factors), rtol=1e-6)
    elsewhere = product(native, case, "xla", x, weight, scales, zeros, factors)
    np.testing.assert_allclose(elsewhere, product(native, case, "xla", *case.arguments()) * factors, rtol=1e-6)


PACKED = [
    dataclasses.replace(case, outputs=208)
    for case in CASES
    if case.outputs == 210 and case.weight in ("int4", LONG_FLOAT4.weight)
]


def packed_arguments(case: ScaledCase) -> tuple[jax.Array, ...]:
    x, weight, *of_groups = case.arguments()
    return x, jnp.asarray(packed(np.asarray(weight))), *of_groups


@pytest.mark.parametrize("case", [*PACKED, dataclasses.replace(LONG_FLOAT4, outputs=208)], ids=str)
def test_packed_matrices_give_what_others_give_wherever_they_are_multiplied(native: str, case: ScaledCase) -> None:
    given = packed_arguments(case)
    expected = product(native, case, "native", *case.arguments())
    for rows in (slice(None), slice(1)):
        np.testing.assert_array_equal(product(native, case, "native", given[0][rows], *given[1:]), expected[rows])
    plain, elsewhere = (product(native, case, "xla", *arguments) for arguments in (case.arguments(), given))
    np.testing.assert_array_equal(elsewhere, plain)
    which = jnp.asarray([0, 3, 207, 16])
    of_rows = [
        dense_rows(which, *arguments[1:3], *(arguments[3:] or (None,)), group=case.group, pairs=case.weight)
        for arguments in (case.arguments(), given)
    ]
    np.testing.assert_array_equal(*of_rows)


FEW_ROWS = [
    dataclasses.replace(LONG, name=f"{weight} {scale} {group}", weight=weight, scale=scale, group=group, zeros=zeros)
    for weight, scale, group, zeros in [
        ("int4", "uint8", 100, True),
        ("int4", "bfloat16", 32, True),
        ("int4", "float32", 100, True),
        ("int4", "bfloat16", 204, False),
        ("float4_e2m1fn", "bfloat16", 32, False),
    ]
]


@pytest.mark.parametrize("case", FEW_ROWS, ids=str)
def test_few_rows_of_a_packed_matrix_have_the_bits_of_a_plain_one(native: str, case: ScaledCase) -> None:
    """Of so many outputs that each thread has wide tiles and what is left of them."""
    case = dataclasses.replace(case, inputs=204, outputs=1040, rows=(4,), compute="bfloat16")
    given = packed_arguments(case)
    for rows in (1, 2, 3, 4):
        expected = product(native, case, "native", case.arguments()[0][:rows], *case.arguments()[1:])
        np.testing.assert_array_equal(product(native, case, "native", given[0][:rows], *given[1:]), expected)


@pytest.mark.slow
@pytest.mark.parametrize("instructions", rare_but(INSTRUCTIONS, {"x86-64-v3"}))
def test_every_set_of_instructions_multiplies_alike(
    native: str, instructions: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXXFLAGS", f"-march={instructions}")
    try:
        other, _ = register_native(tmp_path, symbols=[PRODUCT, SCALED_PRODUCT])
    except NoCompilerError as error:
        pytest.skip(f"this compiler knows no {instructions}: {error}")
    assert other != native
    for case in PACKED:
        found = product(other, case, "native", *packed_arguments(case))
        np.testing.assert_array_equal(found, product(native, case, "native", *case.arguments()))
    for case in CASES:
        given = case.arguments()
        found = product(other, case, "native", *given)
        own = product(native, case, "native", *given)
        if case in INTEGERS:
            np.testing.assert_array_equal(found, own)
            continue
        np.testing.assert_array_equal(found, product(other, case, "cpu", *given))
        np.testing.assert_allclose(found, own, atol=1e-3, rtol=1e-4)


def test_what_it_does_not_multiply_it_names(native: str) -> None:
    case = SCALED_CASES[0]
    with calling(native), pytest.raises(KernelUnsupported, match="compute is float32"):
        scaled_matmul(*case.arguments(), **case.options(), backend="native")
    with pytest.raises(KernelUnsupported, match="no library is registered"):
        scaled_matmul(*CASES[0].arguments(), **CASES[0].options(), backend="native")
    _, weight, scales = case.arguments()
    results = (jax.ShapeDtypeStruct((2, case.outputs), jnp.float32), jax.ShapeDtypeStruct((1 << 16,), jnp.uint8))
    call = jax.ffi.ffi_call(registered_name(SCALED_PRODUCT, native), results)
    x, nothing = jnp.ones((2, case.inputs), jnp.bfloat16), jnp.zeros(0, jnp.float32)
    with pytest.raises(jax.errors.JaxRuntimeError, match="scales, zeros, factors, out or scratch do not fit"):
        jax.block_until_ready(call(x, jnp.int32(2), weight, scales[1:], nothing, nothing, group=16, float4=False))
    with pytest.raises(jax.errors.JaxRuntimeError, match="weight must be of uint8"):
        jax.block_until_ready(
            call(x, jnp.int32(2), weight.astype(jnp.int32), scales, nothing, nothing, group=16, float4=False)
        )
