"""What becomes of a gate and what it lets through inside a kernel: a function of two numbers, which the kernel traces."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, Primitive
from jax.extend.core.primitives import erfc_p


def gate_problem(gated: Callable[[jax.Array, jax.Array], jax.Array]) -> str | None:
    """Why the TPU's Pallas cannot make this of two float32 numbers, or None."""
    number = jax.ShapeDtypeStruct((), jnp.float32)
    if erfc_p in _primitives(jax.make_jaxpr(gated)(number, number).jaxpr):
        return "the TPU's Pallas has no erfc, the error function of which an exact GELU is made"
    return None


def _primitives(jaxpr: Jaxpr) -> Iterator[Primitive]:
    """Those of all equations, also within others'."""
    for equation in jaxpr.eqns:
        yield equation.primitive
        for value in equation.params.values():
            if isinstance(value, ClosedJaxpr):
                yield from _primitives(value.jaxpr)
