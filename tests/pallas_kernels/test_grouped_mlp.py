"""Feed-forwards of groups: their definition by hand, and a TPU's kernel on a simulated one."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pallas_kernels import grouped_mlp
from pallas_kernels.check import devices
from pallas_kernels.grouped_mlp import Begun, begin, slots_ahead, tpu
from pallas_kernels.tpu.chip import MIB, Chip
from tests.pallas_kernels.simulation import checked_tpu
from tests.quick import rare_but, slow_but
from tests.targets.tpu import available

PLACES, COLUMNS = 24, 2048
SIZES = (3, 0, 20, 0, 24)
"""Rows of a group, which more than one block has, and all places."""
V6E = Chip("v6e", 1, vmem_bytes=128 * MIB, smem_bytes=MIB, matrix_columns=256)


def silu(gate: jax.Array, up: jax.Array) -> jax.Array:
    return jax.nn.silu(gate) * up


def given(inner: int = 128) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)

    def numbers(*shape: int) -> np.ndarray:
        return rng.normal(size=shape).astype(jnp.bfloat16)

    rows = np.concatenate([rng.permutation(PLACES)[:size] for size in SIZES])
    return {
        "sums": numbers(PLACES, COLUMNS),
        "x": numbers(PLACES, COLUMNS),
        "gate": numbers(len(SIZES), COLUMNS, inner) / 45,
        "up": numbers(len(SIZES), COLUMNS, inner) / 45,
        "down": numbers(len(SIZES), inner, COLUMNS) / 8,
        "rows": np.concatenate([rows, [0, 99]]).astype(np.int32),
        "weights": np.append(rng.uniform(size=len(rows)), [np.nan] * 2).astype(np.float32),
    }


def run(arrays: dict[str, np.ndarray], backend: str, sizes: tuple[int, ...] = SIZES, slots: int = 0) -> np.ndarray:
    """With room for the matrices of so many groups handed on, or none."""
    sums, x, gate, up, down, rows, weights = (jnp.asarray(array) for array in arrays.values())
    begun = Begun(*(jnp.zeros_like(each[:slots]) for each in (gate, up, down)), None) if slots else None
    with checked_tpu() if backend == "tpu" else nullcontext():
        found = grouped_mlp(
            sums,
            x,
            (gate, up, down),
            jnp.asarray(sizes, jnp.int32),
            rows,
            weights,
            activated=silu,
            usual=10,
            begun=begun,
            backend=backend,
        )
        return np.asarray(found)


def by_hand(arrays: dict[str, np.ndarray]) -> np.ndarray:
    """Row by row, in float64."""
    sums, x, gate, up, down = (np.asarray(array, np.float64) for array in list(arrays.values())[:5])
    for group, row, weight in zip(np.repeat(range(len(SIZES)), SIZES), arrays["rows"], arrays["weights"], strict=False):
        opened, let_through = x[row] @ gate[group], x[row] @ up[group]
        sums[row] += weight * (opened / (1 + np.exp(-opened)) * let_through) @ down[group]
    return sums


@pytest.mark.parametrize("backend", slow_but(["reference", "tpu"], {"reference"}))
def test_it_is_the_weighted_sum_of_what_groups_give(backend: str) -> None:
    arrays = given()
    found, expected = run(arrays, backend).astype(np.float64), by_hand(arrays)
    assert np.abs(found - arrays["sums"].astype(np.float64)).max() > 0.5
    np.testing.assert_allclose(found, expected, rtol=2.0**-7, atol=2.0**-5)


@pytest.mark.slow
def test_a_row_does_not_depend_on_others() -> None:
    """The last group has all rows, in another block, with others before; the others are no numbers."""
    arrays = given()
    whole = run(arrays, "tpu")
    first = int(arrays["rows"][0])
    mine = np.flatnonzero(arrays["rows"][: sum(SIZES)] == first)
    groups = np.repeat(range(len(SIZES)), SIZES)[mine]
    x = np.full_like(arrays["x"], np.nan)
    x[first] = arrays["x"][first]
    alone = arrays | {"x": x, "rows": arrays["rows"][mine], "weights": arrays["weights"][mine]}
    sizes = tuple(int(np.count_nonzero(groups == group)) for group in range(len(SIZES)))
    np.testing.assert_array_equal(run(alone, "tpu", sizes)[first], whole[first])


@pytest.mark.slow
def test_no_number_stays_with_its_row() -> None:
    arrays = given()
    clean = run(arrays, "tpu")
    arrays["x"][5] = np.nan
    found = run(arrays, "tpu")
    assert np.isnan(found[5].astype(np.float32)).all()
    np.testing.assert_array_equal(np.delete(found, 5, axis=0), np.delete(clean, 5, axis=0))


@pytest.mark.slow
@pytest.mark.parametrize("slots", [2, 3, 4])
@pytest.mark.parametrize("sizes", [SIZES, (0, 3, 20, 0, 24)])
def test_room_that_is_handed_on_holds_one_group_after_the_other(sizes: tuple[int, ...], slots: int) -> None:
    """Also of groups without rows, whose matrices may have been begun."""
    arrays = given()
    np.testing.assert_array_equal(run(arrays, "tpu", sizes, slots), run(arrays, "tpu", sizes))


@pytest.mark.parametrize(
    ("places", "inner", "vmem", "slots"),
    [
        (2048, 768, 128, 6),
        (2048, 512, 128, 9),
        (2048, 96, 128, 32),
        (4096, 768, 128, 6),
        (2048, 768, 64, 2),
        (3072, 768, 64, 0),
    ],
)
def test_as_many_groups_are_begun_as_there_is_room_for(
    places: int, inner: int, vmem: int, slots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tpu, "target_chip", lambda: replace(V6E, vmem_bytes=vmem * MIB))
    _, _, matrices, *_ = shapes(places, 2048, inner, "bfloat16")
    assert slots_ahead(places, matrices, usual=128, platform="tpu") == slots
    assert slots_ahead(places, matrices, usual=128, platform="cpu") == 0


def test_what_does_not_fit_names_the_axis() -> None:
    arrays = given()
    arrays["down"] = arrays["down"][:, :64]
    with pytest.raises(ValueError, match=r"axis F \(inner\) differs: 128 in gate, 128 in up, 64 in down"):
        run(arrays, "reference")


@pytest.mark.parametrize(
    ("places", "columns", "inner", "dtype", "refused"),
    [
        (2048, 2048, 768, "bfloat16", None),
        (2048, 4096, 1536, "bfloat16", "do not fit 134217728 bytes of VMEM"),
        (512, 2048, 768, "bfloat16", None),
        (511, 2048, 768, "bfloat16", "511 rows are few"),
        (2048, 2048, 768, "float32", "x is float32"),
        (2048, 2880, 2880, "bfloat16", "2880 columns and 2880 in between do not fill registers"),
        (8192, 2048, 768, "bfloat16", "do not fit 134217728 bytes of VMEM"),
        (4096, 2048, 768, "bfloat16", None),
    ],
)
def test_the_kernel_takes_what_fits(
    places: int, columns: int, inner: int, dtype: str, refused: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tpu, "target_chip", lambda: V6E)
    found = tpu.supports(*shapes(places, columns, inner, dtype), activated=silu, usual=128)
    assert found is None if refused is None else refused in str(found)


def test_two_cores_keep_other_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tpu, "target_chip", lambda: replace(V6E, cores=2))
    assert "of 2 cores" in str(tpu.supports(*shapes(2048, 2048, 768, "bfloat16"), activated=silu, usual=128))


def test_an_activation_without_instructions_keeps_other_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tpu, "target_chip", lambda: V6E)

    def exact(gate: jax.Array, up: jax.Array) -> jax.Array:
        return jax.nn.gelu(gate, approximate=False) * up

    assert "the error function" in str(tpu.supports(*shapes(2048, 2048, 768, "bfloat16"), activated=exact, usual=128))


def shapes(places: int, columns: int, inner: int, dtype: str, **more: Any) -> tuple[Any, ...]:
    """Of a prompt of so many tokens, 8 of 128 experts each, 32 of which are here."""

    def given(dtype: str, *shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype), **more)

    matrices = (given(dtype, 32, columns, inner),) * 2 + (given(dtype, 32, inner, columns),)
    rows = 8 * places
    scalars = given("int32", 32), given("int32", rows), given("float32", rows)
    return given("bfloat16", places, columns), given(dtype, places, columns), matrices, *scalars


@pytest.mark.tpu_compile
@pytest.mark.parametrize("inner", rare_but([512, 768], {768}))
@pytest.mark.parametrize("target", rare_but(["v5e", "v6e", "tpu7x"], {"v6e"}))
def test_the_tpu_compiler_takes_the_kernel(target: str, inner: int) -> None:
    available("v6e-1")
    mesh = Mesh(np.asarray(devices(target, 1)), ("tensor",))
    arrays = shapes(2048, 2048, inner, "bfloat16", sharding=NamedSharding(mesh, PartitionSpec()))

    def kernel(*arrays: Any) -> jax.Array:
        return grouped_mlp(*arrays, activated=silu, usual=128, backend="tpu")

    run: Callable[..., Any] = jax.jit(kernel)
    with jax.set_mesh(mesh):
        hlo = run.trace(*arrays).lower(lowering_platforms=("tpu",)).compile().as_text()
    assert hlo.count("tpu_custom_call") == 1


@pytest.mark.tpu_compile
@pytest.mark.parametrize("target", rare_but(["v5e", "v6e", "tpu7x"], {"v6e"}))
def test_the_tpu_compiler_hands_room_and_semaphores_on(target: str) -> None:
    available("v6e-1")
    mesh = Mesh(np.asarray(devices(target, 1)), ("tensor",))
    arrays = shapes(2048, 2048, 512, "bfloat16", sharding=NamedSharding(mesh, PartitionSpec()))

    def kernels(sums: jax.Array, x: jax.Array, matrices: Any, *scalars: Any) -> jax.Array:
        slots = slots_ahead(len(x), matrices, usual=128, platform="tpu")
        x, *begun = begin(x, *matrices, slots=slots)
        return grouped_mlp(sums, x, matrices, *scalars, activated=silu, usual=128, begun=Begun(*begun), backend="tpu")

    run: Callable[..., Any] = jax.jit(kernels)
    with jax.set_mesh(mesh):
        hlo = run.trace(*arrays).lower(lowering_platforms=("tpu",)).compile().as_text()
    first, second = (line for line in hlo.splitlines() if "tpu_custom_call" in line)
    given = re.findall(r"\w+\[[\d,]+\]\{[^}]*\}", first.partition(" custom-call(")[0])
    assert ["S(2)" if "S(2)" in each else "S(1)" if "S(1)" in each else "HBM" for each in given[1:]] == ["S(1)"] * 3 + [
        "S(2)"
    ]
    assert "%grouped_mlp" in second
