"""Every backend of `take_rows` and `sum_rows`, a TPU's kernels on a simulated one."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pallas_kernels import sum_rows, take_rows
from pallas_kernels.check import TOPOLOGIES, devices
from pallas_kernels.sum_rows import tpu as summing
from pallas_kernels.sum_rows.tpu import TOGETHER
from pallas_kernels.take_rows import OP as TAKE
from pallas_kernels.take_rows import tpu as taking
from pallas_kernels.tpu.chip import MIB, Chip
from tests.pallas_kernels.simulation import checked_tpu
from tests.quick import rare_but, slow_but
from tests.targets.tpu import available

COLUMNS = 512 + 128
"""The last block of columns has one of 128 only."""
V6E = Chip("v6e", 1, vmem_bytes=128 * MIB, smem_bytes=MIB, matrix_columns=256)


def on(backend: str) -> AbstractContextManager[None]:
    return checked_tpu() if backend == "tpu" else nullcontext()


@pytest.mark.parametrize(
    ("backend", "finite"),
    slow_but(
        [*((backend, False) for backend in TAKE.backends), ("reference", True), ("product", True)],
        {("product", False), ("reference", True)},
        several=True,
    ),
)
def test_rows_are_taken_as_often_as_wanted(backend: str, finite: bool) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(18, COLUMNS)).astype(jnp.bfloat16)
    rows = rng.integers(-2, 20, 21).astype(np.int32)
    with on(backend):
        found = np.asarray(take_rows(x, rows, np.int32(18), finite=finite, backend=backend))
    assert found.shape == (21, COLUMNS)
    np.testing.assert_array_equal(found[:18], x[rows.clip(0, 17)][:18])


def test_a_product_takes_rows_to_the_last_bit() -> None:
    """All numbers of bfloat16, no numbers among them, beside a row that has each."""
    bits = np.arange(1 << 16, dtype=np.uint16).reshape(128, 512)
    rows = np.random.default_rng(0).permutation(128).astype(np.int32)
    x = jax.lax.bitcast_convert_type(jnp.asarray(bits), jnp.bfloat16)
    found = take_rows(x, jnp.asarray(rows), jnp.int32(128), backend="product")
    np.testing.assert_array_equal(np.asarray(jax.lax.bitcast_convert_type(found, jnp.uint16)), bits[rows])


@pytest.mark.parametrize(
    ("backend", "dtype"),
    [
        *itertools.product(("reference", "product"), ("float32", "bfloat16")),
        ("tpu", "float32"),
        pytest.param("tpu", "bfloat16", marks=pytest.mark.slow),
    ],
)
def test_weighted_rows_are_added_where_they_belong(backend: str, dtype: str) -> None:
    """Two rows of the second chunk have one place; a row of no place is no number."""
    rng = np.random.default_rng(0)
    places = np.concatenate([rng.permutation(18)[:TOGETHER], [3, 0, 3, 17], [18, 99]]).astype(np.int32)
    rows = rng.normal(size=(len(places), COLUMNS))
    rows[-2:] = np.nan
    sums, given = rng.normal(size=(18, COLUMNS)).astype(jnp.dtype(dtype)), rows.astype(jnp.bfloat16)
    weights = rng.uniform(size=len(places)).astype(np.float32)
    with on(backend):
        found = sum_rows(jax.device_put(sums), given, places, weights, backend=backend)
        found = np.asarray(found, np.float64)
    expected = np.array(sums, np.float64)
    np.add.at(expected, places[:-2], (np.asarray(given, np.float64) * weights[:, None])[:-2])
    # A product is of rows as two numbers of bfloat16 each, or for bfloat16 as one.
    tolerance = 2.0**-6 if dtype == "bfloat16" else 2.0**-14
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(32, 4096), (512, 512)])
def test_sums_that_fill_blocks_are_added_in_place(shape: tuple[int, int]) -> None:
    """Several blocks of columns, or of rows, none of which goes back before all are read."""
    rng = np.random.default_rng(0)
    places = np.array([*range(14), 3, 17], np.int32)
    sums, rows = rng.normal(size=shape).astype(np.float32), rng.normal(size=(16, shape[1])).astype(jnp.bfloat16)
    with checked_tpu():
        found = np.asarray(sum_rows(sums, rows, places, np.ones(16, np.float32), backend="tpu"))
    expected = sums.copy()
    np.add.at(expected, places, rows.astype(np.float32))
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
def test_a_sum_in_the_kernel_does_not_depend_on_rows_beside() -> None:
    rng = np.random.default_rng(0)
    rows, places = rng.normal(size=(32, 512)).astype(jnp.bfloat16), np.arange(32, dtype=np.int32) % 8
    weights = rng.uniform(size=32).astype(np.float32)
    alone = np.where(places == 3, places, 8)
    with checked_tpu():
        among, found = (
            np.asarray(sum_rows(np.zeros((8, 512), np.float32), rows, of, weights, backend="tpu"))
            for of in (places, alone)
        )
    np.testing.assert_array_equal(among[3], found[3])
    assert not found[:3].any()


def test_what_does_not_fit_names_the_axis() -> None:
    rows, places, weights = np.ones((3, 4)), np.zeros(2, np.int32), np.ones(3)
    with pytest.raises(ValueError, match=r"axis M \(rows\) differs: 3 in rows, 2 in places, 3 in weights"):
        sum_rows(np.ones((2, 4)), rows, places, weights)


@pytest.fixture
def check_refused(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Check why the kernel of a module does not run on a v6e for arrays of some shapes and types; None: it does."""

    def check(refused: str | None, module: Any, *arrays: tuple[tuple[int, ...], str]) -> None:
        monkeypatch.setattr(module, "target_chip", lambda: V6E)
        found = module.supports(*(jax.ShapeDtypeStruct(*each) for each in arrays))
        assert found is None if refused is None else refused in str(found)

    return check


@pytest.mark.parametrize(
    ("places", "rows", "dtype", "refused"),
    [
        (512, 512, "bfloat16", None),
        (2048, 512, "bfloat16", None),
        (512, 512, "float32", "rows are float32"),
        (511, 512, "bfloat16", "511 places are few"),
        (2049, 512, "bfloat16", "512 rows are few beside 2049 places"),
        (200_000, 50_000, "bfloat16", "do not fit 134217728 bytes of VMEM"),
        (2048, 100_000, "bfloat16", "places of 100000 rows do not fit 1048576 bytes of SMEM"),
    ],
)
def test_a_kernel_sums_where_a_product_would_take_longer(
    places: int, rows: int, dtype: str, refused: str | None, check_refused: Callable[..., None]
) -> None:
    given = ((places, 2048), "float32"), ((rows, 2048), dtype), ((rows,), "int32"), ((rows,), "float32")
    check_refused(refused, summing, *given)


@pytest.mark.parametrize(
    ("places", "rows", "dtype", "refused"),
    [
        (512, 1024, "bfloat16", None),
        (512, 1024, "float32", "x is float32"),
        (512, 1023, "bfloat16", "1023 rows are few"),
        (500_000, 1024, "bfloat16", "do not fit 134217728 bytes of VMEM"),
        (512, 200_000, "bfloat16", "numbers of 200000 rows do not fit 1048576 bytes of SMEM"),
    ],
)
def test_a_kernel_takes_many_rows_that_fit(
    places: int, rows: int, dtype: str, refused: str | None, check_refused: Callable[..., None]
) -> None:
    check_refused(refused, taking, ((places, 2048), dtype), ((rows,), "int32"), ((), "int32"))


@pytest.mark.tpu_compile
@pytest.mark.parametrize("columns", rare_but([2048, 2880, 7168], {2048, 7168}))
@pytest.mark.parametrize("target", rare_but(TOPOLOGIES, {"v6e"}))
def test_the_tpu_compiler_takes_the_kernels(target: str, columns: int) -> None:
    """Of a prompt of 2,048 tokens, 8 experts each, on four devices."""
    available("v6e-1")
    mesh = Mesh(np.asarray(devices(target, 1)), ("tensor",))
    whole = NamedSharding(mesh, PartitionSpec())

    def given(*shape: int, dtype: str) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype), sharding=whole)

    def both(x: jax.Array, places: jax.Array, weights: jax.Array) -> jax.Array:
        rows = take_rows(x, places, jnp.int32(len(places)), backend="tpu")
        return sum_rows(x.astype(jnp.float32), rows, places, weights, backend="tpu")

    with jax.set_mesh(mesh):
        arrays = given(2048, columns, dtype="bfloat16"), given(6144, dtype="int32"), given(6144, dtype="float32")
        hlo = jax.jit(both).trace(*arrays).lower(lowering_platforms=("tpu",)).compile().as_text()
    assert hlo.count("tpu_custom_call") == 2
