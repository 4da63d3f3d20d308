"""Every backend of `grouped_matmul` on every case, and rows that do not depend on the rows beside them."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pallas_kernels import grouped_matmul, matmul
from pallas_kernels.gpu.device import interpreted_gpu
from pallas_kernels.grouped_matmul import OP
from pallas_kernels.testing import GROUP_CASES, GroupCase
from tests.quick import at_once, slow_but

BACKENDS = [name for name in OP.backends if name not in ("reference", "native", "tpu")]
"""Those that run here as they are; `native` has a file of its own, and `tpu` is `xla` but for taking rows."""


@pytest.fixture(autouse=True, scope="module")
def _without_a_gpu() -> Iterator[None]:
    """The GPU's kernel is interpreted here; on a GPU these tests compile it."""
    with interpreted_gpu() if jax.default_backend() == "cpu" else nullcontext():
        yield


@functools.cache
def defined(case: GroupCase) -> np.ndarray:
    """What the reference gives, compiled once for all backends."""
    x, weights, sizes, scales = case.arguments()
    return np.asarray(at_once(grouped_matmul, x, weights, sizes, scales=scales, backend="reference"))


ON_THE_INTERPRETED_GPU = ("padding behind", "empty groups", "odd extents", "bfloat16", "int8")
"""What every run computes: its interpreter has to be compiled for every case."""


def cases() -> Iterator[Any]:
    for case, backend in itertools.product(GROUP_CASES, BACKENDS):
        slow = backend == "gpu" and case.name not in ON_THE_INTERPRETED_GPU
        yield pytest.param(case, backend, id=f"{case}-{backend}", marks=pytest.mark.slow if slow else ())


@pytest.mark.parametrize(("case", "backend"), list(cases()))
def test_every_backend_multiplies_alike(case: GroupCase, backend: str) -> None:
    x, weights, sizes, scales = case.arguments()
    multiply = functools.partial(grouped_matmul, backend=backend, precision=jax.lax.Precision.HIGHEST)
    found = jax.jit(multiply)(x, weights, sizes, scales=scales)
    assert (found.shape, found.dtype) == ((x.shape[0], weights.shape[2]), jnp.float32)
    real = slice(sum(case.sizes))
    tolerance = {"atol": 2e-5, "rtol": 1e-5} if scales is None else {"rtol": 3e-7}
    np.testing.assert_allclose(np.asarray(found)[real], defined(case)[real], **tolerance)


@pytest.mark.parametrize("case", GROUP_CASES, ids=str)
def test_the_definition_is_a_product_for_each_group(case: GroupCase) -> None:
    x, weights, _, scales = case.arguments()
    found = defined(case)
    first = 0
    for group, size in enumerate(case.sizes):
        if size:
            own = None if scales is None else np.asarray(scales)[group]
            rows = slice(first, first + size)
            given = np.asarray(x)[rows], np.asarray(weights)[group].T
            expected = at_once(matmul, *given, scales=own, backend="reference")
            np.testing.assert_allclose(found[rows], expected, atol=1e-5, rtol=1e-6)
        first += size
    assert first == sum(case.sizes)


ON_THE_CPU = jax.jit(functools.partial(grouped_matmul, platform="cpu"))


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "int8"])
@settings(max_examples=25, deadline=None)
@given(sizes=st.lists(st.integers(0, 40), min_size=4, max_size=4), seed=st.integers(0, 3), data=st.data())
def test_a_row_is_the_same_to_the_last_bit_beside_any_others(
    kind: str, sizes: list[int], seed: int, data: st.DataObject
) -> None:
    """Rows of a full step, some of which are in a smaller one, in another order and in blocks with others."""
    case = GroupCase(name=str(seed), reason="", sizes=(40, 40, 40, 40), weights=kind, inputs=100)
    x, weights, full, scales = case.arguments()
    whole = np.asarray(ON_THE_CPU(x, weights, full, scales=scales))
    chosen = [
        group * 40 + place for group in range(4) for place in data.draw(st.permutations(range(40)))[: sizes[group]]
    ]
    rows = np.zeros((160, 100), np.float32)
    rows[: len(chosen)] = np.asarray(x)[chosen]
    found = np.asarray(ON_THE_CPU(rows, weights, np.asarray(sizes, np.int32), scales=scales))
    np.testing.assert_array_equal(found[: len(chosen)], whole[chosen])


def test_parts_of_rows_have_the_scale_of_the_whole_row() -> None:
    x, weights, sizes, scales = GROUP_CASES[11].arguments()
    x = x[: int(sizes.sum())]
    mesh = jax.sharding.Mesh(np.asarray(jax.devices()[:4]), ("tensor",))
    spec = jax.sharding.PartitionSpec

    def part(x: jax.Array, weights: jax.Array) -> jax.Array:
        return jax.lax.psum(
            grouped_matmul(x, weights, sizes, scales=scales, across=("tensor",), platform="cpu"), "tensor"
        )

    inputs = (spec(None, "tensor"), spec(None, "tensor"))
    found = jax.jit(jax.shard_map(part, mesh=mesh, in_specs=inputs, out_specs=spec(), check_vma=False))(x, weights)
    np.testing.assert_allclose(found, grouped_matmul(x, weights, sizes, scales=scales, platform="cpu"), atol=5e-5)


@pytest.mark.parametrize("backend", ["reference", *BACKENDS])
@pytest.mark.parametrize("case", slow_but([GROUP_CASES[9], GROUP_CASES[11]], [GROUP_CASES[11]]), ids=str)
def test_rows_may_be_taken_of_a_matrix_in_any_order(case: GroupCase, backend: str) -> None:
    x, weights, sizes, scales = case.arguments()
    multiply = functools.partial(at_once, grouped_matmul, scales=scales, backend=backend)
    order = np.random.default_rng(0).permutation(len(x))
    real = slice(sum(case.sizes))
    taken = np.asarray(multiply(np.asarray(x)[np.argsort(order)], weights, sizes, rows=order.astype(np.int32)))
    np.testing.assert_array_equal(taken[real], np.asarray(multiply(x, weights, sizes))[real])


def test_results_have_the_type_that_is_asked_for() -> None:
    for case in (GROUP_CASES[0], GROUP_CASES[9], GROUP_CASES[11]):
        x, weights, sizes, scales = case.arguments()
        for backend in ("reference", *BACKENDS):
            found = at_once(grouped_matmul, x, weights, sizes, scales=scales, dtype=jnp.bfloat16, backend=backend)
            assert found.dtype == jnp.bfloat16
            real = slice(sum(case.sizes))
            rounded = np.asarray(found)[real].astype(np.float32)
            np.testing.assert_allclose(rounded, defined(case)[real], rtol=2**-7, atol=1e-3)


def test_arguments_that_do_not_fit_name_the_axis() -> None:
    x, weights, sizes, scales = GROUP_CASES[11].arguments()
    with pytest.raises(ValueError, match=r"axis I \(inputs\) differs: 64 in x, 63 in weights"):
        grouped_matmul(x, weights[:, 1:], sizes, scales=scales)
    with pytest.raises(ValueError, match=r"axis G \(groups\) differs: 4 in weights, 3 in sizes"):
        grouped_matmul(x, weights, sizes[1:], scales=scales)
    with pytest.raises(ValueError, match=r"axis O \(outputs\) differs: 48 in weights, 47 in scales"):
        grouped_matmul(x, weights, sizes, scales=scales[:, 1:])
    with pytest.raises(ValueError, match="scales belong to int8 weights and to no others"):
        grouped_matmul(x, weights, sizes)
    with pytest.raises(ValueError, match="sizes must be int32, got float32"):
        grouped_matmul(x, weights, sizes.astype(jnp.float32), scales=scales)
    with pytest.raises(ValueError, match="x must be of floating point, got int32"):
        grouped_matmul(jnp.ones(x.shape, jnp.int32), weights, sizes, scales=scales)
