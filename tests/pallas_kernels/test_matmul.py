"""Every backend of `matmul` on every case, and rows that do not depend on the rows beside them."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import nullcontext

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, PartitionSpec

from pallas_kernels import KernelUnsupported, matmul
from pallas_kernels.matmul import MAX_INT8_INPUTS, OP, tpu_int8
from pallas_kernels.matmul.parts import Parts
from pallas_kernels.native import calling
from pallas_kernels.testing import PRODUCT_CASES, ProductCase
from tests.pallas_kernels.simulation import checked_tpu
from tests.quick import at_once

INT8 = next(case for case in PRODUCT_CASES if case.name == "int8")
BACKENDS = [name for name in OP.backends if name not in ("reference", "gpu")]
"""Those of float32 results."""


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    with calling(request.getfixturevalue("native")) if request.param == "native" else nullcontext():
        yield request.param


@functools.cache
def expected(case: ProductCase) -> np.ndarray:
    x, weight, scales = case.arguments()
    return np.asarray(at_once(lambda *given: matmul(*given, scales=scales, backend="reference"), x, weight))


@pytest.mark.parametrize("case", PRODUCT_CASES, ids=str)
def test_every_backend_multiplies_alike(case: ProductCase, backend: str) -> None:
    x, weight, scales = case.arguments()
    options = {"backend": backend, "precision": jax.lax.Precision.HIGHEST}
    if OP.supports(backend, x, weight, scales) is not None:
        assert (backend, case.weight) == ("native", "float16")
        with pytest.raises(KernelUnsupported, match="weight is of float16, and it multiplies bfloat16, float32, int8"):
            matmul(x, weight, scales=scales, backend=backend)
        return
    found = jax.jit(functools.partial(matmul, **options))(x, weight, scales=scales)
    assert (found.shape, found.dtype) == ((*x.shape[:-1], weight.shape[0]), jnp.float32)
    if scales is None:
        np.testing.assert_allclose(found, expected(case), atol=2e-5, rtol=1e-5)
    else:  # sums are integers: what is left is the rounding of two factors, in whatever order
        np.testing.assert_allclose(found, expected(case), rtol=3e-7)


@pytest.mark.parametrize("case", [case for case in PRODUCT_CASES if case.weight == "int8"], ids=str)
def test_the_definition_is_near_the_exact_product(case: ProductCase) -> None:
    """Of each row's length an input may be off by half a step of 1/127 of the row's largest."""
    x, weight, scales = (np.asarray(array, np.float64) for array in case.arguments())
    matrix = weight * scales[:, None]
    step = np.abs(x).max(-1, keepdims=True) / 127
    allowed = 0.5 * step * np.abs(matrix).sum(-1) * (1 + 1e-4)
    assert (np.abs(expected(case) - x @ matrix.T) <= allowed + 1e-6 * np.abs(x @ matrix.T)).all()


def test_channels_without_numbers_and_rows_without_magnitude_are_zero() -> None:
    case = next(case for case in PRODUCT_CASES if case.zeros)
    found = expected(case)
    assert (found[::2] == 0).all()
    assert (found[:, 0] == 0).all()
    assert (found[1::2, 1:] != 0).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_not_finite_shows_and_spoils_no_other(bad: float, backend: str) -> None:
    x, weight, scales = INT8.arguments()
    x = np.array(x)
    x[1, 5] = bad
    found = np.asarray(jax.jit(functools.partial(matmul, backend=backend))(x, weight, scales=scales))
    assert not np.isfinite(found[1]).any()
    np.testing.assert_array_equal(np.delete(found, 1, 0), np.delete(np.asarray(expected(INT8)), 1, 0))


@functools.cache
def _weights(kind: str, inputs: int) -> tuple[np.ndarray, np.ndarray | None]:
    generator = np.random.default_rng(inputs)
    if kind == "int8":
        integers = generator.integers(-127, 128, size=(48, inputs))
        return integers.astype(np.int8), generator.uniform(0.001, 0.1, size=48).astype(np.float32)
    return generator.normal(size=(48, inputs)).astype(jnp.dtype(kind)), None


ON_THE_CPU = jax.jit(functools.partial(matmul, platform="cpu"))


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "int8"])
@settings(max_examples=25, deadline=None)
@given(
    rows=st.integers(1, 70),
    inputs=st.sampled_from([64, 100, 256]),
    outputs=st.sampled_from([1, 2, 48]),
    seed=st.integers(0, 3),
    data=st.data(),
)
def test_a_row_is_the_same_to_the_last_bit_beside_any_others(
    kind: str, rows: int, inputs: int, outputs: int, seed: int, data: st.DataObject
) -> None:
    weight, scales = _weights(kind, inputs)
    weight, scales = weight[:outputs], None if scales is None else scales[:outputs]
    x = np.random.default_rng(seed).normal(size=(70, inputs)).astype(np.float32)
    whole = np.asarray(ON_THE_CPU(x, weight, scales=scales))
    chosen = data.draw(st.permutations(range(70)))[:rows]
    np.testing.assert_array_equal(np.asarray(ON_THE_CPU(x[chosen], weight, scales=scales)), whole[chosen])


@pytest.mark.parametrize(
    ("platform", "dtype", "rows"),
    [("cpu", "bfloat16", 2), ("cpu", "float32", 2), ("cpu", "int8", 2), ("tpu", "bfloat16", 1), ("gpu", "int8", 1)],
)
def test_one_row_is_padded_only_on_the_cpu(platform: str, dtype: str, rows: int) -> None:
    weight, scales = _weights(dtype, 64)
    x = jax.ShapeDtypeStruct((1, 64), jnp.float32)
    text = str(jax.make_jaxpr(lambda x: matmul(x, weight, scales=scales, platform=platform))(x))
    product = next(line for line in text.splitlines() if "dot_general" in line)
    assert f":{'i32' if dtype == 'int8' else 'f32'}[{rows},48]" in product


def test_arguments_that_do_not_fit_name_the_axis() -> None:
    x, weight, scales = jnp.ones((2, 8)), jnp.ones((4, 8), jnp.int8), jnp.ones(4)
    with pytest.raises(ValueError, match=r"axis I \(inputs\) differs: 8 in x, 7 in weight"):
        matmul(x, weight[:, :7], scales=scales)
    with pytest.raises(ValueError, match=r"axis O \(outputs\) differs: 4 in weight, 3 in scales"):
        matmul(x, weight, scales=scales[:3])
    with pytest.raises(ValueError, match="scales belong to an int8 weight and to no other, got weight of int8"):
        matmul(x, weight)
    with pytest.raises(ValueError, match="scales belong to an int8 weight"):
        matmul(x, weight.astype(jnp.float32), scales=scales)
    with pytest.raises(ValueError, match=r"x must be of floating point with two axes or more, got float32\[8\]"):
        matmul(x[0], weight, scales=scales)
    with pytest.raises(
        ValueError, match=r"products of floating point are cut by the compiler; got Parts\(rows=\('a',\)"
    ):
        matmul(x, weight.astype(jnp.float32), parts=Parts(rows=("a",)))
    with pytest.raises(ValueError, match="x may be cut by rows or by inputs, got Parts"):
        Parts(rows=("a",), inputs=("b",))
    long = MAX_INT8_INPUTS + 1
    with pytest.raises(ValueError, match="axis I of an int8 product"):
        jax.eval_shape(
            lambda x, weight, scales: matmul(x, weight, scales=scales),
            jax.ShapeDtypeStruct((2, long), jnp.float32),
            jax.ShapeDtypeStruct((4, long), jnp.int8),
            scales,
        )


@pytest.mark.parametrize("cut", ["rows", "inputs"])
@pytest.mark.parametrize("backend", ["reference", "xla", "cpu", "tpu"])
def test_devices_that_share_the_rows_have_the_results_of_all(backend: str, cut: str) -> None:
    mesh = Mesh(np.asarray(jax.devices()[:4]), ("device",))
    rng = np.random.default_rng(3)
    x = rng.normal(size=(8, 64)).astype(np.float32)
    x[5] = 0
    weight = rng.integers(-127, 128, (32, 64)).astype(np.int8)
    scales = rng.uniform(0.5, 2, 32).astype(np.float32)
    outputs, spec = PartitionSpec("device"), PartitionSpec(*(["device"] if cut == "rows" else [None, "device"]))
    multiply = jax.shard_map(
        lambda x, weight, scales: matmul(x, weight, scales=scales, parts=Parts(**{cut: ("device",)}), backend=backend),
        mesh=mesh,
        in_specs=(spec, outputs, outputs),
        out_specs=PartitionSpec(None, "device"),
        check_vma=False,
    )
    expected = at_once(lambda x: matmul(x, weight, scales=scales, backend="reference"), x)
    np.testing.assert_allclose(jax.jit(multiply)(x, weight, scales), expected, rtol=3e-7)


@pytest.mark.parametrize("count", [65, 600])
def test_a_tpus_kernel_for_many_rows_gives_the_bits_of_xla(count: int) -> None:
    """Sums of integers are exact, and both scale them in one order: the number of rows may choose between the two."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(count, 256)).astype(jnp.bfloat16)
    x[3] = 0
    weight = rng.integers(-127, 128, (512, 256)).astype(np.int8)
    scales = rng.uniform(0.5, 2, 512).astype(np.float32)
    for dtype in (jnp.bfloat16, jnp.float32):
        with checked_tpu():
            assert tpu_int8.takes(x, weight)
            found = np.asarray(at_once(tpu_int8.multiply, x, weight, scales, dtype=dtype))
        expected = at_once(lambda x, dtype=dtype: matmul(x, weight, scales=scales, dtype=dtype, backend="xla"), x)
        assert found.dtype == dtype
        np.testing.assert_array_equal(found, expected)


def test_a_gpus_results_in_16_bits_are_rounded_by_what_multiplies() -> None:
    x, weight, _ = (jnp.asarray(array, jnp.bfloat16) for array in (*INT8.arguments()[:2], 0))
    multiply = functools.partial(matmul, dtype=jnp.bfloat16)
    assert OP.choose("gpu", x, weight, None, dtype=jnp.bfloat16) == "gpu"
    assert OP.choose("gpu", x, weight, None, dtype=jnp.float32) == "xla"
    assert "f32" not in jax.jit(functools.partial(multiply, platform="gpu")).lower(x, weight).as_text()
    expected = np.asarray(multiply(x, weight, backend="xla"), np.float32)
    found = np.asarray(multiply(x, weight, backend="gpu"), np.float32)
    np.testing.assert_allclose(found, expected, rtol=2**-7, atol=2**-7 * np.abs(expected).max())
