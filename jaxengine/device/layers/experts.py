"""A feed-forward of many experts, of which each token takes a few."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import nnx

from jaxengine.device.layers.activation import ACTIVATIONS, ClampedGate
from jaxengine.device.layers.context import ModelContext
from jaxengine.device.layers.linear import Linear
from jaxengine.device.layers.mlp import MLP, GatedMLP
from jaxengine.device.layers.routing import Routing, SparseMixer
from jaxengine.device.layers.schemes import Scheme
from jaxengine.device.layers.step import Step
from pallas_kernels import matmul


@dataclass(frozen=True, kw_only=True)
class ExpertsShape:
    """Experts that `routing` chooses from, each a feed-forward of `inner` channels; `bias` adds one to every product.

    They take and give `width` numbers of a token; the router sees `scored_width` where that is something else.
    They are gated but for `plain` ones, which have one matrix before the activation. A token's weights multiply what its experts
    give, or with `weighs_input` what they take. Of `scaled` ones each has a number that multiplies its weight.
    """

    width: int
    inner: int
    activation: str | ClampedGate
    routing: Routing | SparseMixer
    bias: bool = False
    scaled: bool = False
    weighs_input: bool = False
    plain: bool = False
    scored_width: int | None = None

    def __post_init__(self) -> None:
        assert not (self.bias and self.weighs_input), "a weight would multiply the bias too"

    @property
    def count(self) -> int:
        """How many there are."""
        return self.routing.count

    def activated(self, *inward: jax.Array) -> jax.Array:
        """What an expert's last matrix takes, of what the others give: the gate and what it lets through, or a plain one's."""
        if self.plain:
            assert isinstance(self.activation, str)
            return ACTIVATIONS[self.activation](*inward)
        gate, up = inward
        if isinstance(self.activation, ClampedGate):
            return self.activation(gate, up)
        return ACTIVATIONS[self.activation](gate) * up


class ExpertMatrices(nnx.Module):
    """A matrix `[in, out]` of each expert, kept and multiplied as a scheme says; a bias."""

    def __init__(
        self, count: int, in_size: int, out_size: int, *, axes: tuple[str, str], bias: bool, context: ModelContext
    ) -> None:
        """`axes` are the logical names of (in, out)."""
        self.context = context
        self.shape, self.matrix_axes = (count, in_size, out_size), ("experts", *axes)
        self.biased = bias
        self.input_axis = axes[0]
        if context.scheme is not None:
            self.keep_by(context.scheme)

    def keep_by(self, scheme: Scheme) -> None:
        """Make what `scheme` keeps of them: once, and where the context leaves open which it is."""
        self.scheme = scheme
        parameters = dict(scheme.group_parameters(self.shape, self.matrix_axes, self.context))
        if self.biased:
            count, _, out_size = self.shape
            parameters["bias"] = self.context.parameter((count, out_size), ("experts", self.matrix_axes[2]))
        self.names = tuple(parameters)
        self.axes = tuple(parameter.get_metadata()["axes"] for parameter in parameters.values())
        for name, parameter in parameters.items():
            setattr(self, name, parameter)

    def arrays(self) -> tuple[jax.Array, ...]:
        """All that is kept, as `multiply` takes it."""
        return tuple(getattr(self, name)[...] for name in self.names)

    def multiply(
        self,
        x: jax.Array,
        sizes: jax.Array,
        experts: jax.Array,
        arrays: tuple[jax.Array, ...],
        *,
        rows: jax.Array | None = None,
    ) -> jax.Array:
        """Sorted rows of `x [N, in]`, `sizes[e]` of them for each expert of this device -> `[M, out]` in the activation dtype.

        `rows [M]` says which they are; None: all, as they are. `experts [M]` are the experts of these rows.
        """
        parameters = dict(zip(self.names, arrays, strict=True))
        bias = parameters.pop("bias", None)
        across = self.context.layout.across(self.input_axis)
        y = self.scheme.multiply_groups(x, parameters, sizes, self.context, rows=rows, across=across)
        if bias is None:
            return y
        for axis in across:  # devices that have a part of a product each add their sums
            bias = jnp.where(jax.lax.axis_index(axis) == 0, bias, jnp.zeros((), bias.dtype))
        return y + jnp.take(bias, experts, axis=0, mode="clip").astype(y.dtype)


class SparseMLP(nnx.Module):
    """The weighted sum of each token's experts, `down(activated(gate(x), up(x)))` each.

    On a mesh every device works on its part of the experts, whole ones or a part of each, for all tokens; one sum over the
    devices ends it. Padding goes to no expert.
    """

    def __init__(self, shape: ExpertsShape, *, context: ModelContext) -> None:
        self.shape = shape
        self.context = context
        # Its scores decide, and it is small: no scheme rounds it.
        self.router = context.parameter((shape.count, shape.scored_width or shape.width), ("all_experts", "embed"))
        self.router_bias = context.parameter((shape.count,), ("all_experts",)) if shape.bias else None
        corrected = shape.routing.corrected
        self.scales = context.parameter((shape.count,), ("all_experts",)) if shape.scaled else None
        self.correction = context.parameter((shape.count,), ("all_experts",), dtype=jnp.float32) if corrected else None
        inward, outward = ("embed", "expert_mlp"), ("expert_mlp", "embed")
        sizes = shape.count, shape.width, shape.inner
        self.gate = None if shape.plain else ExpertMatrices(*sizes, axes=inward, bias=shape.bias, context=context)
        self.up = ExpertMatrices(*sizes, axes=inward, bias=shape.bias, context=context)
        sizes = shape.count, shape.inner, shape.width
        self.down = ExpertMatrices(*sizes, axes=outward, bias=shape.bias, context=context)

    def __call__(self, x: jax.Array, step: Step, *, scored: jax.Array | None = None) -> jax.Array:
        """`x [N, E]` -> `[N, E]`. `scored` is what the router sees where that is not `x`."""
        context = self.context
        seen = x if scored is None else scored
        scores = matmul(seen, self.router[...], precision=context.precision, platform=context.platform)
        if self.router_bias is not None:
            scores += self.router_bias[...].astype(scores.dtype)
        correction = None if self.correction is None else self.correction[...]
        weights, experts = self.shape.routing(scores, correction, platform=context.platform)
        if self.scales is not None:
            weights *= self.scales[...].astype(weights.dtype)[experts]
        experts = jnp.where(step.real[:, None], experts, self.shape.count)
        parts = self._parts
        on_devices = context.layout.per_device(
            self._mix,
            inputs=(None, None, None, *(axes for part in parts for axes in part.axes)),
            outputs=("tokens", "embed"),
        )
        mixed: jax.Array = on_devices(x, weights, experts, *(array for part in parts for array in part.arrays()))
        return mixed.astype(context.activation_dtype)

    @property
    def _parts(self) -> tuple[ExpertMatrices, ...]:
        """The matrices before the activation, and the one behind it."""
        return (self.up, self.down) if self.gate is None else (self.gate, self.up, self.down)

    def _mix(self, x: jax.Array, weights: jax.Array, experts: jax.Array, *arrays: jax.Array) -> jax.Array:
        """What this device's experts add for each token, float32 `[N, E]`, summed over the devices.

        `x [N, E]`; `weights` and `experts [N, k]` of each token, an expert of no token's being `count`; the matrices' arrays.
        """
        layout, given = self.context.layout, iter(arrays)
        *before, (_, down) = ((part, tuple(itertools.islice(given, len(part.names)))) for part in self._parts)
        count = down[0].shape[0]
        if layout.mesh is not None:
            experts = experts - jax.lax.axis_index(layout.across("experts")) * count
        here = (experts >= 0) & (experts < count)
        # Rows are pairs of a token and an expert, sorted by expert; those of other devices and of padding are the last.
        expert_of_pair = jnp.where(here, experts, count).reshape(-1)
        order = jnp.argsort(expert_of_pair, stable=True)
        sizes = (expert_of_pair[:, None] == jnp.arange(count)).sum(axis=0, dtype=jnp.int32)
        rows, expert_of_row = order // self.shape.routing.chosen, expert_of_pair[order]
        inward = (matrices.multiply(x, sizes, expert_of_row, arrays, rows=rows) for matrices, arrays in before)
        if self.shape.weighs_input:  # what is weighed and multiplied is what is multiplied and weighed
            weight_of_row = weights.reshape(-1)[order][:, None]
            inward = ((y.astype(jnp.float32) * weight_of_row).astype(y.dtype) for y in inward)
            weights = jnp.ones_like(weights)
        outer = self.down.multiply(self.shape.activated(*inward), sizes, expert_of_row, down)
        row_of_pair = jnp.argsort(order).reshape(here.shape)
        mixed = jnp.zeros(x.shape, jnp.float32)
        # One expert of each token after the other: all rows in float32 at once are many times the residual stream, and
        # XLA:CPU's sum over an axis depends on the number of tokens.
        for rank in range(self.shape.routing.chosen):
            found = jnp.where(here[:, [rank]], outer[row_of_pair[:, rank]].astype(jnp.float32), 0.0)
            mixed += weights[:, [rank]] * found
        if layout.mesh is None:
            return mixed
        return jax.lax.psum(mixed, (*layout.across("experts"), *layout.across("expert_mlp")))


class SharedSparseMLP(nnx.Module):
    """Experts that tokens choose (`routed`), and one that all take (`shared`).

    Where that is `weighed`, as much of it as the sigmoid of a token's score says. Where the router sees more than the chosen ones
    take, a matrix narrows a token to their width, and another widens what they give.
    """

    def __init__(
        self, shape: ExpertsShape, *, shared: int, weighed: bool, bias: bool = False, context: ModelContext
    ) -> None:
        """The shared one has `shared` channels, the others' activation, and biases if told so, as the matrices around those."""
        assert isinstance(shape.activation, str)
        self.context = context
        self.routed = SparseMLP(shape, context=context)
        width = shape.scored_width or shape.width
        network = MLP if shape.plain else GatedMLP
        self.shared = network(width, shared, activation=shape.activation, bias=bias, context=context)
        self.share = context.parameter((1, width), ("all_experts", "embed")) if weighed else None
        self.narrows = width != shape.width
        if self.narrows:
            self.narrow = Linear(width, shape.width, axes=("head_dim", "embed"), bias=bias, context=context)
            self.widen = Linear(shape.width, width, axes=("embed", "head_dim"), bias=bias, context=context)

    def __call__(self, x: jax.Array, step: Step) -> jax.Array:
        context, routed = self.context, self._routed(x, step)
        if self.share is None:
            return routed + self.shared(x, step)
        score = matmul(x, self.share[...], precision=context.precision, platform=context.platform)
        return routed + jax.nn.sigmoid(score).astype(x.dtype) * self.shared(x, step)

    def _routed(self, x: jax.Array, step: Step) -> jax.Array:
        if not self.narrows:
            return self.routed(x, step)
        return self.widen(self.routed(self.narrow(x, step), step, scored=x), step)
