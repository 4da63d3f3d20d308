"""The mixer of Mamba 2: a state space whose steps, and what goes into and out of its state, are projections of the input."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from jaxengine.device.layers.activation import ACTIVATIONS
from jaxengine.device.layers.attention import HEADS
from jaxengine.device.layers.cache import Cache
from jaxengine.device.layers.causal_convolution import CausalConvolution
from jaxengine.device.layers.context import ModelContext
from jaxengine.device.layers.keeps import Keeps, PerSlot, State
from jaxengine.device.layers.linear import Linear, project
from jaxengine.device.layers.norm import by_root_mean_square
from jaxengine.device.layers.sharding import Layout
from jaxengine.device.layers.step import Step
from pallas_kernels import selective_scan
from pallas_kernels.storage import LANES

SCAN = "space scan"
STATES = ("slots", "heads", "states", "head_dim")


@dataclass(frozen=True, kw_only=True)
class StateSpaceShape:
    """`heads` of `head_dim` channels; those of each of `groups` share what goes into and out of their states, `state` numbers.

    `taps` are the positions that convolutions see, `step_limits` bound the steps. `output_bias` is that of the last projection,
    `bias` that of the others. What comes out of the heads is gated and normed, with `norm_first` in the other order, and without
    a `norm_epsilon` gated alone. `multipliers` are of what is projected: gate, value, inward, outward, steps.
    """

    width: int
    heads: int
    head_dim: int
    groups: int
    state: int
    taps: int
    bias: bool
    output_bias: bool
    convolution_bias: bool
    activation: str
    step_limits: tuple[float, float]
    norm_epsilon: float | None
    norm_first: bool = False
    multipliers: tuple[float, float, float, float, float] = (1.0,) * 5

    @property
    def channels(self) -> int:
        """Of all heads."""
        return self.heads * self.head_dim

    def group_axis(self, layout: Layout) -> str:
        """The axis of groups: as heads are split where they divide, else whole on every device."""
        return "heads" if self.groups % layout.shards("heads") == 0 else "states"

    def tiles(self, layout: Layout) -> tuple[int, int, int]:
        """The scan's state as `selective_scan` has it: neighbours that share a group on a device fill a TPU's vectors."""
        of_a_group = self.heads // max(self.groups, layout.shards("heads"))
        together = math.gcd(max(1, LANES // self.head_dim), of_a_group)
        return self.heads // together, self.state, together * self.head_dim


class StateSpace(nnx.Module):
    """A mixer. On a mesh every device has its own heads, and groups that do not divide whole."""

    def __init__(self, shape: StateSpaceShape, *, context: ModelContext) -> None:
        self.shape = shape
        self.context = context
        axis, shared = shape.group_axis(context.layout), shape.groups * shape.state
        self.gate = self._inner(shape.channels, "heads")
        self.value = self._inner(shape.channels, "heads")
        self.inward = self._inner(shared, axis)
        self.outward = self._inner(shared, axis)
        self.steps = self._inner(shape.heads, "heads")
        convolved = ((shape.channels, "heads", "value"), (shared, axis, "inward"), (shared, axis, "outward"))
        self.convolve_value, self.convolve_inward, self.convolve_outward = (
            CausalConvolution(
                channels, shape.taps, bias=shape.convolution_bias, axis=along, state=f"space {name}", context=context
            )
            for channels, along, name in convolved
        )
        self.step_bias, self.log_rates, self.skip = (
            context.parameter((shape.heads,), ("heads",), dtype=jnp.float32) for _ in range(3)
        )
        self.norm = None if shape.norm_epsilon is None else context.parameter((shape.channels,), ("heads",))
        self.output = Linear(
            shape.channels, shape.width, axes=("embed", "heads"), bias=shape.output_bias, context=context
        )

    @property
    def keeps(self) -> Keeps:
        """The convolutions' inputs, and the state of the scan."""
        scan = State(SCAN, self.shape.tiles(self.context.layout), axes=STATES[1:], dtype=jnp.dtype(jnp.float32))
        convolutions = (self.convolve_value, self.convolve_inward, self.convolve_outward)
        return (PerSlot((*(convolution.state for convolution in convolutions), scan)),)

    def __call__(self, x: jax.Array, cache: Cache, step: Step) -> tuple[jax.Array, Cache]:
        """`x [N, E]` -> `[N, E]` and the cache with the states of every row's sequence."""
        shape, layout = self.shape, self.context.layout
        activate = ACTIVATIONS[shape.activation]
        projected = project(x, step, self.gate, self.value, self.inward, self.outward, self.steps)
        gate, value, inward, outward, steps = (
            part if multiplier == 1.0 else part * multiplier
            for part, multiplier in zip(projected, shape.multipliers, strict=True)
        )
        value, cache = self.convolve_value(value, cache, step)
        inward, cache = self.convolve_inward(inward, cache, step)
        outward, cache = self.convolve_outward(outward, cache, step)
        value, inward, outward = (activate(convolved) for convolved in (value, inward, outward))
        steps = jax.nn.softplus(steps.astype(jnp.float32) + self.step_bias[...])
        heads = layout.constrain(value.reshape(len(x), shape.heads, shape.head_dim), HEADS)
        inward, outward = (shared.reshape(len(x), shape.groups, shape.state) for shared in (inward, outward))
        before, slots = cache.states_by_slot(SCAN, step)
        steps = jnp.clip(steps, *shape.step_limits)
        y, states = self._scan(heads, steps, inward, outward, before, slots, step.starts, step.offsets)
        cache = cache.with_states(SCAN, states)
        y = (y + self.skip[...][:, None] * heads.astype(jnp.float32)).reshape(len(x), shape.channels)
        output = self.output(self._gated(y, gate).astype(self.context.activation_dtype), step)
        return layout.constrain(output, ("tokens", "embed")), cache

    def _scan(
        self,
        value: jax.Array,
        steps: jax.Array,
        inward: jax.Array,
        outward: jax.Array,
        *states_and_rows: jax.Array,
    ) -> tuple[jax.Array, jax.Array]:
        """As `selective_scan`, every device its heads."""
        context, axis = self.context, self.shape.group_axis(self.context.layout)
        scan = partial(selective_scan, precision=context.precision, platform=context.platform)

        def local(
            value: jax.Array,
            steps: jax.Array,
            log_rates: jax.Array,
            inward: jax.Array,
            outward: jax.Array,
            *rest: jax.Array,
        ) -> tuple[jax.Array, jax.Array]:
            if axis == "states" and self.shape.groups > 1:  # the heads of this device are all of one group
                devices = context.layout.shards("heads")
                mine = jax.lax.axis_index(context.layout.across("heads")) * self.shape.groups // devices
                inward, outward = (jax.lax.dynamic_slice_in_dim(x, mine, 1, axis=1) for x in (inward, outward))
            return scan(value, steps, -jnp.exp(log_rates), inward, outward, *rest)

        groups = ("tokens", axis, "head_dim")
        on_devices = context.layout.per_device(
            local,
            inputs=(HEADS, HEADS[:2], ("heads",), groups, groups, STATES, None, None, None),
            outputs=(HEADS, STATES),
        )
        result: tuple[jax.Array, jax.Array] = on_devices(
            value, steps, self.log_rates[...], inward, outward, *states_and_rows
        )
        return result

    def _inner(self, channels: int, axis: str) -> Linear:
        shape = self.shape
        return Linear(shape.width, channels, axes=(axis, "embed"), bias=shape.bias, context=self.context)

    def _gated(self, y: jax.Array, gate: jax.Array) -> jax.Array:
        """`y`, `[N, channels]`, normed where there is a norm, and times silu(gate)."""
        gate = jax.nn.silu(gate.astype(jnp.float32))
        if self.shape.norm_first:
            return self._normed(y) * gate
        return self._normed(y * gate)

    def _normed(self, y: jax.Array) -> jax.Array:
        """Each group's channels by themselves; rounded to the activation dtype before they are scaled."""
        if self.norm is None or self.shape.norm_epsilon is None:
            return y
        by_group = y.reshape(len(y), self.shape.groups, -1)
        normed = by_root_mean_square(by_group, epsilon=self.shape.norm_epsilon, context=self.context)
        normed = normed.reshape(y.shape).astype(self.context.activation_dtype)
        return normed * self.norm[...].astype(normed.dtype)
