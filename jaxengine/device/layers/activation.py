"""Activation functions under the names that config.json uses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp

ACTIVATIONS: Mapping[str, Callable[[jax.Array], jax.Array]] = {
    "silu": jax.nn.silu,
    "swish": jax.nn.silu,
    "relu": jax.nn.relu,
    "tanh": jnp.tanh,
    "sigmoid": jax.nn.sigmoid,
    "relu2": lambda x: jnp.square(jax.nn.relu(x)),
    "gelu": partial(jax.nn.gelu, approximate=False),
    "gelu_new": partial(jax.nn.gelu, approximate=True),
    "gelu_fast": partial(jax.nn.gelu, approximate=True),
    "quick_gelu": lambda x: x * jax.nn.sigmoid(1.702 * x),
    "gelu_pytorch_tanh": partial(jax.nn.gelu, approximate=True),
}


@dataclass(frozen=True, kw_only=True)
class ClampedGate:
    """What gpt-oss makes of a gate and what it lets through: the gate at most `limit`, the other within it on both sides."""

    slope: float
    limit: float

    def __call__(self, gate: jax.Array, up: jax.Array) -> jax.Array:
        """`[..., F]` of both -> `[..., F]`."""
        gate, up = jnp.minimum(gate, self.limit), jnp.clip(up, -self.limit, self.limit)
        return gate * jax.nn.sigmoid(gate * self.slope) * (up + 1)


@dataclass(frozen=True, kw_only=True)
class LimitedGate:
    """A gate at most `limit` behind its `activation`, and what it lets through within that on both sides (Step 3.5)."""

    activation: str
    limit: float

    def __call__(self, gate: jax.Array, up: jax.Array) -> jax.Array:
        """`[..., F]` of both -> `[..., F]`."""
        return jnp.minimum(ACTIVATIONS[self.activation](gate), self.limit) * jnp.clip(up, -self.limit, self.limit)


Gate = str | ClampedGate | LimitedGate
"""An activation of the gate, by its name, or something else that is made of it and of what it lets through."""


def gated(activation: Gate, gate: jax.Array, up: jax.Array) -> jax.Array:
    """`[..., F]` of both -> `[..., F]`."""
    return ACTIVATIONS[activation](gate) * up if isinstance(activation, str) else activation(gate, up)
