"""Which gates a TPU's kernels can trace."""

from __future__ import annotations

import jax
import pytest

from pallas_kernels.tpu.gates import gate_problem


def exact(gate: jax.Array, up: jax.Array) -> jax.Array:
    return jax.nn.gelu(gate, approximate=False) * up


@pytest.mark.parametrize("gated", [exact, jax.jit(exact)], ids=["plain", "within another program"])
def test_an_exact_gelu_is_refused(gated) -> None:
    assert "erfc" in gate_problem(gated)


@pytest.mark.parametrize("activation", [jax.nn.silu, jax.nn.relu, jax.nn.gelu])
def test_others_are_not(activation) -> None:
    assert gate_problem(lambda gate, up: activation(gate) * up) is None
