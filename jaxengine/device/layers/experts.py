"""A feed-forward of many experts, of which each token takes a few."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from jaxengine.device.layers.activation import ACTIVATIONS, Gate, gated
from jaxengine.device.layers.adapters import rows_by_group
from jaxengine.device.layers.context import ModelContext
from jaxengine.device.layers.exchange import scatter_sum
from jaxengine.device.layers.expert_matrices import ExpertMatrices
from jaxengine.device.layers.expert_rows import Pairs, own_rows, sum_by_blocks, sum_by_rank
from jaxengine.device.layers.linear import Linear
from jaxengine.device.layers.mlp import MLP, GatedMLP
from jaxengine.device.layers.routing import Routing, SparseMixer
from jaxengine.device.layers.step import Step
from pallas_kernels import grouped_mlp, matmul
from pallas_kernels.grouped_mlp import OP as TOGETHER
from pallas_kernels.grouped_mlp import Begun, slots_ahead
from pallas_kernels.grouped_mlp import begin as begin_grouped_mlp


@dataclass(frozen=True, kw_only=True)
class ExpertsShape:
    """Experts that `routing` chooses from, each a feed-forward of `inner` channels; `bias` adds one to every product.

    They take and give `width` numbers of a token; the router sees `scored_width` where that is something else.
    They are gated but for `plain` ones, which have one matrix before the activation. A token's weights multiply what its experts
    give, or with `weighs_input` what they take. Of `scaled` ones each has a number that multiplies its weight.
    """

    width: int
    inner: int
    activation: Gate
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
        return gated(self.activation, *inward)


class Chosen(NamedTuple):
    """The `weights` and `experts [N, k]` of each token; the parts of `Begun`, if experts are on their way."""

    weights: jax.Array
    experts: jax.Array
    begun: tuple[jax.Array, ...] = ()


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

    def __call__(
        self,
        x: jax.Array,
        step: Step,
        *,
        scored: jax.Array | None = None,
        beside: jax.Array | None = None,
        chosen: Chosen | None = None,
    ) -> jax.Array:
        """`x [N, E]` -> `[N, E]`. `scored` is what the router sees where that is not `x`; with `beside` there is added to it
        what each device has to add of something else, `[devices, N, E]`: one sum over the devices for both. `chosen` is what
        `choose` gave, if that was called before.
        """
        context = self.context
        if chosen is None:
            x, chosen = self.choose(x, step, scored=scored)
        parts = self._parts
        rows = step.adapters
        adapted = [part.adapters for part in parts if part.adapters is not None and rows is not None]
        on_devices = context.layout.per_device(
            partial(self._mix, begins=bool(chosen.begun)),
            inputs=(
                *(None,) * 4,
                ("mlp", "tokens", "embed"),
                *self._axes_of_begun[: len(chosen.begun)],
                *(axes for part in parts for axes in part.axes),
                *(of for each in adapted for of in each.axes),
            ),
            outputs=("split_tokens" if self._splits(len(x)) else "tokens", "embed"),
        )
        arrays = [array for part in parts for array in part.arrays()]
        arrays += [array for each in adapted for array in each.arrays()]
        adapters = rows.adapters if adapted and rows is not None else None
        mixed: jax.Array = on_devices(x, chosen.weights, chosen.experts, adapters, beside, *chosen.begun, *arrays)
        return mixed.astype(context.activation_dtype)

    def choose(self, x: jax.Array, step: Step, *, scored: jax.Array | None = None) -> tuple[jax.Array, Chosen]:
        """What each token of `scored` chooses, or of `x [N, E]`, and this as it is.

        The matrices of some experts may be on their way then, before what needs `x` gathers all devices' tokens: links are busy
        there and memory is not. They start behind the choice, whose small copies would wait for them.
        """
        context = self.context
        seen = x if scored is None else scored
        if self._splits(len(x)):  # each device chooses for its own tokens
            seen = context.layout.constrain_stream(seen, platform=context.platform)
        scores = matmul(seen, self.router[...], precision=context.precision, platform=context.platform)
        if self.router_bias is not None:
            scores += self.router_bias[...].astype(scores.dtype)
        correction = None if self.correction is None else self.correction[...]
        weights, experts = self.shape.routing(scores, correction, platform=context.platform)
        if self.scales is not None:
            weights *= self.scales[...].astype(weights.dtype)[experts]
        experts = jnp.where(step.real[:, None], experts, self.shape.count)
        weights, experts = (context.layout.gather_stream(of, platform=context.platform) for of in (weights, experts))
        slots = self._slots_ahead(len(x), step)
        if slots == 0:
            return x, Chosen(weights, experts)
        x, weights, experts = jax.lax.optimization_barrier((x, weights, experts))
        own_tokens, parts = ("split_tokens", "embed"), self._parts
        begin = context.layout.per_device(
            partial(begin_grouped_mlp, slots=slots),
            inputs=(own_tokens, *(axes for part in parts for axes in part.axes)),
            outputs=(own_tokens, *self._axes_of_begun),
        )
        x, *begun = begin(x, *(array for part in parts for array in part.arrays()))
        return x, Chosen(weights, experts, tuple(begun))

    def _slots_ahead(self, tokens: int, step: Step) -> int:
        """Of how many of a device's experts reading begins before the tokens are gathered."""
        layout, shape, dtype = self.context.layout, self.shape, self.context.activation_dtype
        adapted = step.adapters is not None and any(part.adapters is not None for part in self._parts)
        if adapted or not self._splits(tokens) or not self._can_be_together():
            return 0
        count, inner = shape.count // layout.shards("experts"), shape.inner // layout.shards("expert_mlp")
        pairs = tokens * shape.routing.chosen

        def of(*sizes: int, dtype: Any = dtype) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(sizes, dtype)

        x, inward, numbers = of(tokens, shape.width), of(count, shape.width, inner), of(pairs, dtype=jnp.int32)
        matrices = inward, inward, of(count, inner, shape.width)
        given = x, x, matrices, of(count, dtype=jnp.int32), numbers, of(pairs, dtype=jnp.float32)
        if not self._is_together(*given):
            return 0
        return slots_ahead(tokens, matrices, usual=self._usual(pairs), platform=self.context.platform)

    @property
    def _axes_of_begun(self) -> tuple[tuple[str, ...] | None, ...]:
        """Room for some matrices of each device, and its semaphores."""
        return *(part.matrix_axes for part in self._parts), None

    @property
    def _parts(self) -> tuple[ExpertMatrices, ...]:
        """The matrices before the activation, and the one behind it."""
        return (self.up, self.down) if self.gate is None else (self.gate, self.up, self.down)

    def _mix(
        self,
        x: jax.Array,
        weights: jax.Array,
        experts: jax.Array,
        adapters: jax.Array | None,
        beside: jax.Array | None,
        *arrays: jax.Array,
        begins: bool,
    ) -> jax.Array:
        """What this device's experts add for each token, `[N, E]`, summed over the devices, or of the device's own tokens.

        `x [N, E]`; `weights` and `experts [N, k]` of each token, an expert of no token's being `count`; with `adapters [N]` those
        that tokens go through; `beside [1, N, E]` of another sum; what is begun if `begins`, the arrays of matrices, and behind
        them of adapters.
        """
        layout, given = self.context.layout, iter(arrays)
        begun = Begun(*itertools.islice(given, len(Begun._fields))) if begins else None
        matrices = [(part, tuple(itertools.islice(given, len(part.names)))) for part in self._parts]
        of_adapters = list(given)
        count = matrices[-1][1][0].shape[0]
        if layout.mesh is not None:
            experts = experts - jax.lax.axis_index(layout.across("experts")) * count
        here = (experts >= 0) & (experts < count)
        pairs = Pairs.sort(jnp.where(here, experts, count), weights, count)
        weighs_input = self.shape.weighs_input

        def outer(pairs: Pairs) -> jax.Array:
            return self._multiply(x, pairs, matrices, adapters, of_adapters)

        most = own_rows(experts.size, layout, self.context.platform)
        splits = self._splits(len(x))
        dtype = self.context.activation_dtype if splits else jnp.float32
        before = jnp.zeros(x.shape, dtype) if beside is None else beside[0].astype(dtype)
        together = None if of_adapters else self._together(before, x, pairs, matrices, begun)
        if together is not None:
            mixed = together
        elif most < experts.size:
            mixed = sum_by_blocks(outer, pairs, before, weigh=not weighs_input, most=most)
        else:
            mixed = sum_by_rank(outer(pairs), pairs, here, jnp.ones_like(weights) if weighs_input else weights)
            mixed = (mixed if beside is None else mixed + beside[0]).astype(dtype)
        if layout.mesh is None:
            return mixed
        if splits:
            return scatter_sum(mixed, layout.across("split_tokens"))
        across = (*layout.across("experts"), *layout.across("expert_mlp"))
        return jax.lax.psum(mixed.astype(self.context.activation_dtype), across)

    def _together(
        self,
        sums: jax.Array,
        x: jax.Array,
        pairs: Pairs,
        matrices: Sequence[tuple[ExpertMatrices, tuple[jax.Array, ...]]],
        begun: Begun | None,
    ) -> jax.Array | None:
        """`sums [N, E]` with what experts give for all `pairs` of `x [N, E]`, by one kernel; None: it takes other experts."""
        if not self._can_be_together():
            return None
        (gate,), (up,), (down,) = (arrays for _, arrays in matrices)
        rows = pairs.numbers // self.shape.routing.chosen
        given = sums, x, (gate, up, down), pairs.sizes, rows, pairs.weights
        if not self._is_together(*given):
            assert begun is None
            return None
        usual, platform = self._usual(rows.size), self.context.platform
        return grouped_mlp(*given, activated=self.shape.activated, usual=usual, begun=begun, platform=platform)

    def _can_be_together(self) -> bool:
        """Whether one kernel for all of an expert knows such experts."""
        return not (self.shape.plain or self.shape.weighs_input) and all(part.plain for part in self._parts)

    def _is_together(self, *given: Any) -> bool:
        """Whether it takes these arguments."""
        options = {"activated": self.shape.activated, "usual": self._usual(given[-1].size)}
        return TOGETHER.choose(self.context.platform, *given, **options) != TOGETHER.portable

    def _usual(self, pairs: int) -> int:
        """Of so many pairs, those that an expert usually has."""
        return -(-pairs // self.shape.count)

    def _splits(self, tokens: int) -> bool:
        """Whether sums of so many tokens go to the device that has their part of the residual stream, as `Linear`'s do."""
        layout = self.context.layout
        return not layout.own_tokens and layout.splits_stream(tokens, platform=self.context.platform)

    def _multiply(
        self,
        x: jax.Array,
        pairs: Pairs,
        matrices: Sequence[tuple[ExpertMatrices, tuple[jax.Array, ...]]],
        adapters: jax.Array | None,
        of_adapters: Sequence[jax.Array],
    ) -> jax.Array:
        """`x [N, E]` -> what experts give for each pair `[M, E]`."""
        *before, (_, down) = matrices
        rows, count = pairs.numbers // self.shape.routing.chosen, len(pairs.sizes)
        groups = None
        if adapters is not None:  # an expert of an adapter is a group
            slots = of_adapters[0].shape[0]
            adapter = adapters[rows]
            through = (pairs.experts < count) & (adapter < slots)
            groups = rows_by_group(jnp.where(through, adapter * count + pairs.experts, slots * count), slots * count)
        beside = iter(of_adapters)

        def multiplied(
            part: ExpertMatrices, x: jax.Array, arrays: tuple[jax.Array, ...], taken: Any = None
        ) -> jax.Array:
            y = part.multiply(x, pairs.sizes, pairs.experts, arrays, rows=taken)
            if part.adapters is None or groups is None:
                return y
            x = x if taken is None else jnp.take(x, taken, axis=0, mode="clip")
            return part.adapters.add(y, x, groups, (next(beside), next(beside)))

        inward = [multiplied(part, x, arrays, rows) for part, arrays in before]
        if self.shape.weighs_input:  # what is weighed and multiplied is what is multiplied and weighed
            inward = [(y.astype(jnp.float32) * pairs.weights[:, None]).astype(y.dtype) for y in inward]
        return multiplied(self.down, self.shape.activated(*inward), down)


class SharedSparseMLP(nnx.Module):
    """Experts that tokens choose (`routed`), and one that all take (`shared`).

    Where that is `weighed`, as much of it as the sigmoid of a token's score says. Where the router sees more than the chosen ones
    take, a matrix narrows a token to their width, and another widens what they give.
    """

    def __init__(
        self,
        shape: ExpertsShape,
        *,
        shared: int,
        weighed: bool,
        bias: bool = False,
        shared_activation: Gate | None = None,
        context: ModelContext,
    ) -> None:
        """The shared one has `shared` channels and biases if told so, as the matrices around the others have.

        `shared_activation` is its own; None: that of the others.
        """
        activation = shape.activation if shared_activation is None else shared_activation
        self.context = context
        self.routed = SparseMLP(shape, context=context)
        width = shape.scored_width or shape.width
        if shape.plain:
            assert isinstance(activation, str)
            self.shared: MLP | GatedMLP = MLP(width, shared, activation=activation, bias=bias, context=context)
        else:
            self.shared = GatedMLP(width, shared, activation=activation, bias=bias, context=context)
        self.share = context.parameter((1, width), ("all_experts", "embed")) if weighed else None
        self.narrows = width != shape.width
        if self.narrows:
            self.narrow = Linear(width, shape.width, axes=("head_dim", "embed"), bias=bias, context=context)
            self.widen = Linear(shape.width, width, axes=("embed", "head_dim"), bias=bias, context=context)

    def __call__(self, x: jax.Array, step: Step) -> jax.Array:
        x, chosen = self.routed.choose(x, step)
        inner = self.shared.inner(x, step)
        if self.narrows:
            routed = self.widen(self.routed(self.narrow(x, step), step, chosen=chosen), step)
            return routed + self._weighed(self.shared.down(inner, step), x)
        parts = self.shared.down.parts(inner, step)
        if parts is not None:
            return self.routed(x, step, beside=self._weighed(parts, x), chosen=chosen)
        return self.routed(x, step, chosen=chosen) + self._weighed(self.shared.down(inner, step), x)

    def _weighed(self, shared: jax.Array, x: jax.Array) -> jax.Array:
        """`shared [..., N, E]` as far as each token of `x [N, E]` takes it."""
        if self.share is None:
            return shared
        score = matmul(x, self.share[...], precision=self.context.precision, platform=self.context.platform)
        return jax.nn.sigmoid(score).astype(shared.dtype) * shared
