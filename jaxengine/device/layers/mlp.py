"""Feed-forward blocks: column-parallel up, row-parallel down."""

from __future__ import annotations

import jax
from flax import nnx

from jaxengine.device.layers.activation import Gate, gated
from jaxengine.device.layers.collective_projections import project_and_back
from jaxengine.device.layers.context import ModelContext
from jaxengine.device.layers.linear import Linear, project
from jaxengine.device.layers.schemes import WEIGHT
from jaxengine.device.layers.schemes.dense import DENSE
from jaxengine.device.layers.step import Step
from pallas_kernels import AdaptedMatrix, adapted_gate


class GatedMLP(nnx.Module):
    """`down(activation(gate(x)) * up(x))`, or what else `Gate` makes of the two."""

    def __init__(
        self,
        width: int,
        inner: int,
        *,
        activation: Gate,
        bias: bool,
        output_bias: bool | None = None,
        multiplier: float = 1.0,
        context: ModelContext,
    ) -> None:
        """`output_bias` is that of `down`; None: as the others. `multiplier` is of the gate, before its activation."""
        self.context = context
        self.activation = activation
        self.multiplier = multiplier
        self.gate = Linear(width, inner, axes=("mlp", "embed"), bias=bias, context=context)
        self.up = Linear(width, inner, axes=("mlp", "embed"), bias=bias, context=context)
        output_bias = bias if output_bias is None else output_bias
        self.down = Linear(inner, width, axes=("embed", "mlp"), bias=output_bias, context=context)

    def __call__(self, x: jax.Array, step: Step) -> jax.Array:
        fed = project_and_back(x, step, (self.gate, self.up), self._gated, self.down)
        return self.down(self.inner(x, step), step) if fed is None else fed

    def inner(self, x: jax.Array, step: Step) -> jax.Array:
        """What `down` takes."""
        inner = self._gated_with_adapters(x, step)
        if inner is None:
            inner = self._gated(*project(x, step, self.gate, self.up))
        return self.context.layout.constrain_stream(inner, "mlp", platform=self.context.platform)

    def _gated_with_adapters(self, x: jax.Array, step: Step) -> jax.Array | None:
        """What `down` takes, where a TPU makes it at once of both products and those of their adapters; None elsewhere."""
        context, linears = self.context, (self.gate, self.up)
        slots = [own for linear in linears if (own := linear.through(step)) is not None and own.by_rank]
        plain = all(linear.scheme is DENSE and linear.bias is None for linear in linears) and x.ndim == 2
        if context.platform != "tpu" or context.layout.parallel or not plain or len(slots) < len(linears):
            return None
        assert step.adapters is not None  # what a step through adapters has
        of_gate, of_up = (
            AdaptedMatrix(linear.arrays()[WEIGHT], own.inward[...], own.outward[...])
            for linear, own in zip(linears, slots, strict=True)
        )
        return adapted_gate(
            x,
            of_gate,
            of_up,
            step.adapters,
            gated=self._gated,
            dtype=context.activation_dtype,
            precision=context.precision,
            platform=context.platform,
        )

    def _gated(self, gate: jax.Array, up: jax.Array) -> jax.Array:
        return gated(self.activation, gate if self.multiplier == 1.0 else gate * self.multiplier, up)


class MLP(nnx.Module):
    """`down(activation(up(x)))`."""

    def __init__(self, width: int, inner: int, *, activation: str, bias: bool, context: ModelContext) -> None:
        self.context = context
        self.activation = activation
        self.up = Linear(width, inner, axes=("mlp", "embed"), bias=bias, context=context)
        self.down = Linear(inner, width, axes=("embed", "mlp"), bias=bias, context=context)

    def __call__(self, x: jax.Array, step: Step | None) -> jax.Array:
        return self.down(self.inner(x, step), step)

    def inner(self, x: jax.Array, step: Step | None) -> jax.Array:
        """What `down` takes."""
        inner = self.up.activated(x, step, self.activation)
        return self.context.layout.constrain_stream(inner, "mlp", platform=self.context.platform)
