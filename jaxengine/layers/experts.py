"""A feed-forward of many experts, of which each token takes a few."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import nnx

from jaxengine.layers import sharding
from jaxengine.layers.activation import ACTIVATIONS
from jaxengine.layers.context import ModelContext
from jaxengine.layers.mlp import GatedMLP
from jaxengine.layers.schemes import Scheme
from jaxengine.layers.step import Step
from pallas_kernels import matmul, mean_last


@dataclass(frozen=True, kw_only=True)
class ExpertsShape:
    """`chosen` of `count` experts for each token, each a gated feed-forward of `inner` channels.

    Their weights are the softmax of the router's scores over all experts; with `normalised`, over those chosen.
    """

    width: int
    inner: int
    count: int
    chosen: int
    normalised: bool
    activation: str


class ExpertMatrices(nnx.Module):
    """A matrix `[in, out]` of each expert, kept and multiplied as a scheme says: the context's, until told otherwise."""

    def __init__(
        self, count: int, in_size: int, out_size: int, *, axes: tuple[str, str], context: ModelContext
    ) -> None:
        """`axes` are the logical names of (in, out)."""
        self.context = context
        self.shape, self.matrix_axes = (count, in_size, out_size), ("experts", *axes)
        self.input_axis = axes[0]
        self.keep_by(context.scheme)

    def keep_by(self, scheme: Scheme) -> None:
        """Keep and multiply them as `scheme` says, before they have any numbers."""
        for name in getattr(self, "names", ()):
            delattr(self, name)
        self.scheme = scheme
        parameters = scheme.group_parameters(self.shape, self.matrix_axes, self.context)
        self.names = tuple(parameters)
        self.axes = tuple(parameter.get_metadata()["axes"] for parameter in parameters.values())
        for name, parameter in parameters.items():
            setattr(self, name, parameter)

    def arrays(self) -> tuple[jax.Array, ...]:
        """What the scheme keeps, as `multiply` takes them."""
        return tuple(getattr(self, name)[...] for name in self.names)

    def multiply(
        self, x: jax.Array, sizes: jax.Array, arrays: tuple[jax.Array, ...], *, rows: jax.Array | None = None
    ) -> jax.Array:
        """Sorted rows of `x [N, in]`, `sizes[e]` of them for each expert of this device -> `[M, out]` in the activation dtype.

        `rows [M]` says which they are; None: all, as they are.
        """
        parameters: Mapping[str, jax.Array] = dict(zip(self.names, arrays, strict=True))
        across = () if self.context.mesh is None else sharding.MESH_AXES[self.input_axis]
        return self.scheme.multiply_groups(x, parameters, sizes, self.context, rows=rows, across=across)


class SparseMLP(nnx.Module):
    """The weighted sum of each token's experts, `down(activation(gate(x)) * up(x))` each.

    On a mesh every device works on its part of the experts, whole ones or a part of each, for all tokens; one sum over the
    devices ends it. Padding goes to no expert.
    """

    def __init__(self, shape: ExpertsShape, *, context: ModelContext) -> None:
        self.shape = shape
        self.context = context
        # Its scores decide, and it is small: no scheme rounds it.
        self.router = context.parameter((shape.count, shape.width), ("all_experts", "embed"))
        inward, outward = ("embed", "expert_mlp"), ("expert_mlp", "embed")
        self.gate = ExpertMatrices(shape.count, shape.width, shape.inner, axes=inward, context=context)
        self.up = ExpertMatrices(shape.count, shape.width, shape.inner, axes=inward, context=context)
        self.down = ExpertMatrices(shape.count, shape.inner, shape.width, axes=outward, context=context)

    def __call__(self, x: jax.Array, step: Step) -> jax.Array:
        context = self.context
        scores = matmul(x, self.router[...], precision=context.precision, platform=context.platform)
        weights, experts = route(scores, self.shape, platform=context.platform)
        experts = jnp.where(step.real[:, None], experts, self.shape.count)
        parts = (self.gate, self.up, self.down)
        on_devices = sharding.per_device(
            self._mix,
            mesh=context.mesh,
            inputs=(None, None, None, *(axes for part in parts for axes in part.axes)),
            outputs=("tokens", "embed"),
        )
        mixed: jax.Array = on_devices(x, weights, experts, *(array for part in parts for array in part.arrays()))
        return mixed.astype(context.activation_dtype)

    def _mix(self, x: jax.Array, weights: jax.Array, experts: jax.Array, *arrays: jax.Array) -> jax.Array:
        """What this device's experts add for each token, float32 `[N, E]`, summed over the devices.

        `x [N, E]`; `weights` and `experts [N, k]` of each token, an expert of no token's being `count`; the matrices' arrays.
        """
        mesh, given = self.context.mesh, iter(arrays)
        gate, up, down = (tuple(itertools.islice(given, len(part.names))) for part in (self.gate, self.up, self.down))
        count = gate[0].shape[0]
        if mesh is not None:
            experts = experts - jax.lax.axis_index(sharding.EXPERT) * count
        here = (experts >= 0) & (experts < count)
        # Rows are pairs of a token and an expert, sorted by expert; those of other devices and of padding are the last.
        expert_of_pair = jnp.where(here, experts, count).reshape(-1)
        order = jnp.argsort(expert_of_pair, stable=True)
        sizes = (expert_of_pair[:, None] == jnp.arange(count)).sum(axis=0, dtype=jnp.int32)
        rows = order // self.shape.chosen
        inner = ACTIVATIONS[self.shape.activation](self.gate.multiply(x, sizes, gate, rows=rows))
        inner = inner * self.up.multiply(x, sizes, up, rows=rows)
        outer = self.down.multiply(inner, sizes, down)
        row_of_pair = jnp.argsort(order).reshape(here.shape)
        mixed = jnp.zeros(x.shape, jnp.float32)
        # One expert of each token after the other: all rows in float32 at once are many times the residual stream, and
        # XLA:CPU's sum over an axis depends on the number of tokens.
        for rank in range(self.shape.chosen):
            found = jnp.where(here[:, [rank]], outer[row_of_pair[:, rank]].astype(jnp.float32), 0.0)
            mixed += weights[:, [rank]] * found
        return mixed if mesh is None else jax.lax.psum(mixed, sharding.MODEL)


class SharedSparseMLP(nnx.Module):
    """Experts that tokens choose (`routed`), and one that all take, as much of it as the sigmoid of a token's score says."""

    def __init__(self, shape: ExpertsShape, *, shared: int, context: ModelContext) -> None:
        """The shared one has `shared` channels."""
        self.context = context
        self.routed = SparseMLP(shape, context=context)
        self.shared = GatedMLP(shape.width, shared, activation=shape.activation, bias=False, context=context)
        self.share = context.parameter((1, shape.width), ("all_experts", "embed"))

    def __call__(self, x: jax.Array, step: Step) -> jax.Array:
        context = self.context
        score = matmul(x, self.share[...], precision=context.precision, platform=context.platform)
        return self.routed(x, step) + jax.nn.sigmoid(score).astype(x.dtype) * self.shared(x, step)


def route(scores: jax.Array, shape: ExpertsShape, *, platform: str) -> tuple[jax.Array, jax.Array]:
    """Float32 `scores [N, count]` -> weights, float32, and numbers of each token's experts, `[N, chosen]`, the best first."""
    largest, experts = jax.lax.top_k(scores, shape.chosen)
    shares = jnp.exp(scores - largest[:, :1])
    chosen = jnp.take_along_axis(shares, experts, axis=1)
    if shape.normalised:
        total = sum((chosen[:, [rank]] for rank in range(shape.chosen)), start=jnp.float32(0))
    else:
        total = shape.count * mean_last(shares, platform=platform)
    return chosen / total, experts
