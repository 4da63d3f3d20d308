"""Every backend of `adapted_gate` beside its definition, and the kernel as the TPU's compiler takes it."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxengine.device.layers.activation import ACTIVATIONS, ClampedGate, Gate, gated
from pallas_kernels import AdaptedMatrix, AdapterRows, KernelUnsupported, adapted_gate
from pallas_kernels.adapted_gate import tpu
from pallas_kernels.check import devices
from pallas_kernels.testing.adapters import adapter_rows
from pallas_kernels.tpu.chip import simulated_tpu
from tests.quick import rare_but
from tests.targets.tpu import available

ADAPTERS, RANK, INPUTS, OUTPUTS = 3, 16, 128, 256
THROUGH = (*(2, None, 0, 1, None) * 7, 1, 1, None)
"""No whole number of the blocks that the test has."""
SILU = functools.partial(gated, "silu")


def arguments(dtype: str) -> tuple[jax.Array, AdaptedMatrix, AdaptedMatrix, AdapterRows]:
    generator = np.random.default_rng(0)

    def numbers(*shape: int) -> jax.Array:
        return jnp.asarray(generator.normal(size=shape) / np.sqrt(shape[-1]), dtype)

    def matrix() -> AdaptedMatrix:
        outward = numbers(ADAPTERS, RANK, OUTPUTS) * 8
        return AdaptedMatrix(numbers(OUTPUTS, INPUTS), numbers(ADAPTERS, RANK, INPUTS), outward)

    return numbers(len(THROUGH), INPUTS) * 8, matrix(), matrix(), adapter_rows(THROUGH, ADAPTERS)


def definition(x: jax.Array, gate: AdaptedMatrix, up: AdaptedMatrix) -> np.ndarray:
    """In float64, row by row."""

    def product(row: np.ndarray, matrix: AdaptedMatrix, adapter: int | None) -> np.ndarray:
        weight, inward, outward = (np.asarray(array, np.float64) for array in matrix)
        return weight @ row if adapter is None else weight @ row + row @ inward[adapter].T @ outward[adapter]

    rows = zip(np.asarray(x, np.float64), THROUGH, strict=True)
    pairs = [(product(row, gate, adapter), product(row, up, adapter)) for row, adapter in rows]
    return np.asarray([g / (1 + np.exp(-g)) * u for g, u in pairs])


def test_products_apart_are_the_definition() -> None:
    x, gate, up, rows = arguments("float32")
    multiply = functools.partial(adapted_gate, gated=SILU, dtype=jnp.float32, precision=jax.lax.Precision.HIGHEST)
    np.testing.assert_allclose(multiply(x, gate, up, rows), definition(x, gate, up), atol=2e-4, rtol=1e-4)


def test_the_kernel_is_the_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several blocks of rows, the last one not full, and of outputs."""
    monkeypatch.setattr(tpu, "ROWS", 16)
    monkeypatch.setattr(tpu, "OUTPUTS", (128,))
    x, gate, up, rows = arguments("bfloat16")
    with simulated_tpu(pltpu.InterpretParams()):
        found = adapted_gate(x, gate, up, rows, gated=SILU, dtype=jnp.bfloat16, platform="tpu", backend="tpu")
    expected = definition(x, gate, up)
    assert np.abs(np.asarray(found, np.float64) - expected).max() < 0.01 * np.abs(expected).max()


def test_what_the_kernel_does_not_take_is_named() -> None:
    x, gate, up, rows = arguments("float32")
    given: dict[str, Any] = {"gated": SILU, "dtype": jnp.float32}
    with pytest.raises(KernelUnsupported, match="for v6e"):
        adapted_gate(x, gate, up, rows, **given, backend="tpu")
    with simulated_tpu(pltpu.InterpretParams()), pytest.raises(KernelUnsupported, match="of bfloat16, got float32"):
        adapted_gate(x, gate, up, rows, **given, backend="tpu")
    with pytest.raises(ValueError, match="weight of gate and up must be alike"):
        adapted_gate(x, gate, up._replace(weight=up.weight[:128]), rows, **given)
    with pytest.raises(ValueError, match=r"R \(rank\)"):
        adapted_gate(x, gate._replace(outward=gate.outward[:, :8]), up, rows, **given)


@pytest.mark.tpu_compile
@pytest.mark.parametrize("activation", rare_but([*ACTIVATIONS, ClampedGate(slope=1.7, limit=7.0)], {"silu"}), ids=str)
def test_the_compiler_takes_it_for_many_rows(activation: Gate) -> None:
    available("v6e-1")
    mesh = Mesh(np.asarray(devices("v6e", 1)), ("tensor",))

    def struct(*shape: int, dtype: Any = jnp.bfloat16) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, PartitionSpec()))

    def compiled(count: int) -> str:
        matrix = AdaptedMatrix(struct(256, 128), struct(8, 8, 128), struct(8, 8, 256))
        rows = AdapterRows(*(struct(size, dtype=jnp.int32) for size in (count, count, 8)))
        multiply = functools.partial(
            adapted_gate, gated=functools.partial(gated, activation), dtype=jnp.bfloat16, platform="tpu"
        )
        with jax.set_mesh(mesh):
            traced = jax.jit(multiply).trace(struct(count, 128), matrix, matrix, rows)
            return traced.lower(lowering_platforms=("tpu",)).compile().as_text() or ""

    assert ("tpu_custom_call" in compiled(520)) == (activation != "gelu")
    if activation == "silu":
        assert "tpu_custom_call" not in compiled(tpu.MANY_ROWS // 2)
