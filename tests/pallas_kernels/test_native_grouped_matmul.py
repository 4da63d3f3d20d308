"""The CPU's products by groups in C++: what the reference says, bits that depend on nothing beside a row, all instructions."""

from __future__ import annotations

import dataclasses
import functools
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
from pallas_kernels import KernelUnsupported, grouped_matmul, grouped_scaled_matmul
from pallas_kernels.native import GROUPED_PRODUCT, calling, registered_name
from pallas_kernels.testing import GROUP_CASES, SCALED_CASES, GroupCase, ScaledCase
from tests.pallas_kernels.test_native_matmul import INSTRUCTIONS
from tests.quick import rare_but
from xla_cache.library import NoCompilerError

Case = GroupCase | ScaledCase

LONG = GroupCase(name="strips, blocks", reason="of a task", sizes=(0, 200, 3, 0, 1), behind=9, inputs=518, outputs=1070)
GROUPED = (
    *GROUP_CASES,
    LONG,
    dataclasses.replace(LONG, weights="bfloat16", name="strips, blocks, bfloat16"),
    dataclasses.replace(LONG, weights="int8", name="strips, blocks, int8"),
)
LONG_SCALED = ScaledCase(
    name="strips and blocks",
    reason="of a task",
    group=32,
    zeros=True,
    inputs=518,
    outputs=1070,
    sizes=(0, 40, 3, 0, 1),
    behind=9,
    scale="bfloat16",
)
SCALED = tuple(
    dataclasses.replace(case, compute="bfloat16")
    for case in (
        *SCALED_CASES,
        LONG_SCALED,
        dataclasses.replace(LONG_SCALED, name="bytes, long", scale="uint8"),
        dataclasses.replace(LONG_SCALED, name="float4, long", weight="float4_e2m1fn", zeros=False),
        dataclasses.replace(LONG_SCALED, name="e4m3, long", weight="float8_e4m3fn", group=128, zeros=False),
        dataclasses.replace(LONG_SCALED, name="e5m2, long", weight="float8_e5m2", group=100, inputs=333, outputs=70),
        dataclasses.replace(LONG_SCALED, name="int8, one group", weight="int8", group=518),
    )
)
MANY = (
    *(case for case in GROUPED if case.name.startswith(LONG.name)),
    *(case for case in SCALED if "long" in case.name or case.group in (518, 32)),
)


def product(name: str | None, case: Case, arguments: tuple[Any, ...], backend: str = "native") -> np.ndarray:
    """All rows, also those of no group."""
    with calling(name):
        return np.asarray(multiplier(name, case, backend)(*arguments))


@functools.cache
def multiplier(name: str | None, case: Case, backend: str) -> Callable[..., jax.Array]:
    """What is called with one library: each is asked with equal shapes many times."""
    if isinstance(case, ScaledCase):
        return jax.jit(functools.partial(grouped_scaled_matmul, **case.options(), backend=backend))

    def multiply(x: Any, weights: Any, sizes: Any, scales: Any = None) -> jax.Array:
        return grouped_matmul(x, weights, sizes, scales=scales, backend=backend)

    return jax.jit(multiply)


def arguments(case: Case) -> tuple[jax.Array, ...]:
    return case.grouped_arguments() if isinstance(case, ScaledCase) else case.arguments()


def check(found: np.ndarray, case: Case) -> None:
    """As near to the reference as sums in float32 are; of int8 the integers are the same."""
    real, kind = slice(sum(case.sizes)), "" if isinstance(case, ScaledCase) else case.weights
    expected = product(None, case, arguments(case), "reference")[real]
    atol = 0 if kind == "int8" else 2e-6 * np.sqrt(case.inputs) * np.abs(expected).max(initial=0)
    np.testing.assert_allclose(found[real], expected, rtol=3e-7, atol=atol)


@pytest.mark.parametrize("case", [*GROUPED, *SCALED], ids=str)
def test_it_multiplies_as_the_reference(native: str, case: Case) -> None:
    check(product(native, case, arguments(case)), case)


@pytest.mark.parametrize("kind", ["int8", "float8_e4m3fn", "float8_e5m2", "int4", "float4_e2m1fn"])
def test_each_number_is_what_its_type_says(native: str, kind: str) -> None:
    """All bytes as outputs of one input, or of two; float8's NaNs and infinities among them."""
    every = jnp.arange(256, dtype=jnp.uint8)[None, None]
    paired = kind in ("int4", "float4_e2m1fn")
    weights = every if paired else jax.lax.bitcast_convert_type(every, jnp.dtype(kind))
    case = ScaledCase(name=kind, reason="", weight=kind, group=2, compute="bfloat16")
    inputs = 2 if paired else 1
    rest = (jnp.asarray([inputs], jnp.int32), jnp.full((1, 1, 256), 0.5, jnp.float32))
    given = (jnp.eye(inputs, dtype=jnp.float32) if paired else jnp.ones((1, 1)), weights, *rest)
    found, expected = product(native, case, given), product(None, case, given, "reference")
    np.testing.assert_array_equal(found, expected)
    assert len(np.unique(found)) >= (15 if paired else 200)


def check_beside(name: str, case: Case, sizes: tuple[int, ...], orders: list[list[int]]) -> None:
    """Rows of a full step, some of which are in a smaller one, in another order and beside others."""
    x, weights, whole_sizes, *rest = arguments(dataclasses.replace(case, sizes=(20,) * 5, behind=0))
    x = np.asarray(x)
    whole = product(name, case, (x, weights, whole_sizes, *rest))
    chosen = [group * 20 + place for group, order in enumerate(orders) for place in order[: sizes[group]]]
    rows = np.zeros(x.shape, x.dtype)
    rows[: len(chosen)] = x[chosen]
    found = product(name, case, (rows, weights, np.asarray(sizes, np.int32), *rest))
    np.testing.assert_array_equal(found[: len(chosen)], whole[chosen])


@pytest.mark.parametrize("case", MANY, ids=str)
@settings(max_examples=5, deadline=None)
@given(sizes=st.tuples(*[st.integers(0, 20)] * 5), data=st.data())
def test_a_row_is_the_same_to_the_last_bit_beside_any_others(
    native: str, case: Case, sizes: tuple[int, ...], data: st.DataObject
) -> None:
    check_beside(native, case, sizes, [data.draw(st.permutations(range(20))) for _ in sizes])


@pytest.mark.slow
@pytest.mark.parametrize("instructions", rare_but(INSTRUCTIONS, {"x86-64-v3", "x86-64"}))
def test_every_set_of_instructions_multiplies_alike(
    native: str, instructions: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXXFLAGS", f"-march={instructions}")
    try:
        other, _ = register_native(tmp_path, symbols=[GROUPED_PRODUCT])
    except NoCompilerError as error:
        pytest.skip(f"this compiler knows no {instructions}: {error}")
    assert other != native
    for case in (*GROUPED, *SCALED):
        check(product(other, case, arguments(case)), case)
    for case in MANY:
        check_beside(other, case, (1, 0, 7, 20, 3), [[19, *range(19)]] * 5)


def test_rows_may_be_taken_and_results_have_a_type(native: str) -> None:
    case = dataclasses.replace(GROUP_CASES[11], behind=0)
    x, weights, sizes, scales = case.arguments()
    order = np.random.default_rng(0).permutation(len(x))
    with calling(native):
        multiply = functools.partial(grouped_matmul, scales=scales, backend="native", dtype=jnp.bfloat16)
        taken = multiply(x[np.argsort(order)], weights, sizes, rows=jnp.asarray(order, jnp.int32))
        assert taken.dtype == jnp.bfloat16
        np.testing.assert_array_equal(taken, multiply(x, weights, sizes))
    np.testing.assert_array_equal(
        taken, jnp.asarray(product(None, case, (x, weights, sizes, scales), "cpu"), jnp.bfloat16)
    )


def test_what_it_does_not_multiply_it_names(native: str) -> None:
    case = SCALED[0]
    with calling(native), pytest.raises(KernelUnsupported, match="compute is float32"):
        grouped_scaled_matmul(*case.grouped_arguments(), group=16, compute=jnp.float32, backend="native")
    odd = dataclasses.replace(case, group=15, weight="int8")
    with calling(native), pytest.raises(KernelUnsupported, match="groups of 15 inputs"):
        grouped_scaled_matmul(*odd.grouped_arguments(), **odd.options(), backend="native")
    x, weights, sizes, _ = GROUP_CASES[0].arguments()
    with pytest.raises(KernelUnsupported, match="no library is registered"):
        grouped_matmul(x, weights, sizes, backend="native")
    with calling(native), pytest.raises(KernelUnsupported, match="weights are of float16"):
        grouped_matmul(x, weights.astype(jnp.float16), sizes, backend="native")


def test_arguments_that_do_not_fit_are_refused(native: str) -> None:
    x, weights, sizes, _ = GROUP_CASES[0].arguments()
    nothing = jnp.zeros(0, jnp.float32)
    good = {"x": x, "weights": weights, "sizes": sizes, "scales": nothing, "zeros": nothing, "row_scales": nothing}
    results = (jax.ShapeDtypeStruct((4, 48), jnp.float32), jax.ShapeDtypeStruct((4 * 4 * 65,), jnp.uint8))

    def call(*, group: int = 1, results: tuple[jax.ShapeDtypeStruct, ...] = results, **other: jax.Array) -> None:
        multiply = jax.ffi.ffi_call(registered_name(GROUPED_PRODUCT, native), results)
        jax.block_until_ready(multiply(*(good | other).values(), group=group, float4=False))

    call()
    bad = (
        {"x": x[:3]},
        {"x": x.astype(jnp.bfloat16)},
        {"sizes": sizes[1:]},
        {"scales": jnp.ones((4, 1, 48))},
        {"results": (results[0], jax.ShapeDtypeStruct((4 * 4 * 65 - 1,), jnp.uint8))},
        {"x": x.astype(jnp.int8), "weights": weights.astype(jnp.int8), "scales": jnp.ones((4, 48))},
        {
            "x": x.astype(jnp.bfloat16),
            "weights": weights.astype(jnp.int8),
            "scales": jnp.ones((4, 5, 48)),
            "group": 15,
            "results": (results[0], jax.ShapeDtypeStruct((1 << 16,), jnp.uint8)),
        },
    )
    for other in bad:
        with pytest.raises(jax.errors.JaxRuntimeError, match="out or scratch do not fit"):
            call(**other)
    with pytest.raises(jax.errors.JaxRuntimeError, match="weights must be of float32"):
        call(weights=weights.astype(jnp.int32))
    with pytest.raises(jax.errors.JaxRuntimeError, match="x and out must have two axes"):
        call(x=x[0])


def test_sizes_that_say_too_much_write_nothing_behind(native: str) -> None:
    x, weights, _, _ = GROUP_CASES[0].arguments()
    with calling(native):
        found = grouped_matmul(x, weights, jnp.asarray([-3, 1, 1 << 30, 5], jnp.int32), backend="native")
        np.testing.assert_array_equal(
            found, grouped_matmul(x, weights, jnp.asarray([0, 1, 3, 0], jnp.int32), backend="native")
        )
