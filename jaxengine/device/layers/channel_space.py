"""The mixer of Mamba 1: a state space of each channel, whose steps, and what goes into and out of states, the input decides."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from jaxengine.device.layers.activation import ACTIVATIONS
from jaxengine.device.layers.cache import Cache
from jaxengine.device.layers.causal_convolution import CausalConvolution
from jaxengine.device.layers.context import ModelContext
from jaxengine.device.layers.keeps import Keeps, PerSlot, State
from jaxengine.device.layers.linear import Linear, project
from jaxengine.device.layers.norm import RMSNorm
from jaxengine.device.layers.sharding import Layout
from jaxengine.device.layers.step import Step
from pallas_kernels import channel_scan
from pallas_kernels.storage import LANES

SCAN = "channel scan"
CHANNELS = ("tokens", "heads")
TILES = ("heads", "states", "head_dim")


@dataclass(frozen=True, kw_only=True)
class ChannelSpaceShape:
    """`channels`, each with a `state` of so many numbers; their steps are projected from `rank` numbers of a token.

    `taps` are the positions that the convolution sees. With a `norm_epsilon` what makes steps, and what goes into and out of
    states, is normed, and scaled if `norm_affine`.
    """

    width: int
    channels: int
    state: int
    rank: int
    taps: int
    bias: bool
    convolution_bias: bool
    activation: str
    norm_epsilon: float | None = None
    norm_affine: bool = True

    def tiles(self, layout: Layout) -> tuple[int, int, int]:
        """The states as `channel_scan` has them: channels fill a TPU's vectors where those of a device can."""
        of_device = self.channels // layout.shards("heads")
        lanes = LANES if of_device % LANES == 0 else of_device
        return self.channels // lanes, self.state, lanes


class ChannelSpace(nnx.Module):
    """A mixer. On a mesh every device has its own channels; what all of them share is summed over the devices."""

    def __init__(self, shape: ChannelSpaceShape, *, context: ModelContext) -> None:
        self.shape = shape
        self.context = context
        self.value, self.gate = (
            Linear(shape.width, shape.channels, axes=("heads", "embed"), bias=shape.bias, context=context)
            for _ in range(2)
        )
        self.convolve = CausalConvolution(
            shape.channels,
            shape.taps,
            bias=shape.convolution_bias,
            axis="heads",
            state="channel inputs",
            context=context,
        )
        self.rank, self.inward, self.outward = (
            Linear(shape.channels, size, axes=("head_dim", "heads"), bias=False, context=context)
            for size in (shape.rank, shape.state, shape.state)
        )
        self.rank_norm, self.inward_norm, self.outward_norm = (
            self._norm(size) for size in (shape.rank, shape.state, shape.state)
        )
        self.steps = Linear(shape.rank, shape.channels, axes=("heads", "head_dim"), bias=False, context=context)
        self.step_bias, self.skip = (
            context.parameter((shape.channels,), ("heads",), dtype=jnp.float32) for _ in range(2)
        )
        self.log_rates = context.parameter(shape.tiles(context.layout), TILES, dtype=jnp.float32)
        self.output = Linear(shape.channels, shape.width, axes=("embed", "heads"), bias=shape.bias, context=context)

    @property
    def keeps(self) -> Keeps:
        """The convolution's inputs, and the state of the scan."""
        scan = State(SCAN, self.shape.tiles(self.context.layout), axes=TILES, dtype=jnp.dtype(jnp.float32))
        return (PerSlot((self.convolve.state, scan)),)

    def __call__(self, x: jax.Array, cache: Cache, step: Step) -> tuple[jax.Array, Cache]:
        """`x [N, E]` -> `[N, E]` and the cache with the states of every row's sequence."""
        layout = self.context.layout
        value, gate = project(x, step, self.value, self.gate)
        value, cache = self.convolve(value, cache, step)
        value = layout.constrain(ACTIVATIONS[self.shape.activation](value), CHANNELS)
        shared = project(value, step, self.rank, self.inward, self.outward)
        rank, inward, outward = (
            part if norm is None else norm(part)
            for part, norm in zip(shared, (self.rank_norm, self.inward_norm, self.outward_norm), strict=True)
        )
        steps = jax.nn.softplus(self.steps(rank, step).astype(jnp.float32) + self.step_bias[...])
        before, slots = cache.states_by_slot(SCAN, step)
        y, states = self._scan(value, steps, inward, outward, before, slots, step.starts, step.offsets)
        y = (y + self.skip[...] * value.astype(jnp.float32)) * jax.nn.silu(gate.astype(jnp.float32))
        output = self.output(y.astype(self.context.activation_dtype), step)
        return layout.constrain(output, ("tokens", "embed")), cache.with_states(SCAN, states)

    def _scan(self, value: jax.Array, steps: jax.Array, *rest: jax.Array) -> tuple[jax.Array, jax.Array]:
        """As `channel_scan`, every device its channels."""
        scan = partial(channel_scan, platform=self.context.platform)

        def local(log_rates: jax.Array, value: jax.Array, steps: jax.Array, *rest: jax.Array) -> tuple[jax.Array, ...]:
            return scan(value, steps, -jnp.exp(log_rates), *rest)

        on_devices = self.context.layout.per_device(
            local,
            inputs=(TILES, CHANNELS, CHANNELS, None, None, ("slots", *TILES), None, None, None),
            outputs=(CHANNELS, ("slots", *TILES)),
        )
        result: tuple[jax.Array, jax.Array] = on_devices(self.log_rates[...], value, steps, *rest)
        return result

    def _norm(self, size: int) -> RMSNorm | None:
        shape = self.shape
        if shape.norm_epsilon is None:
            return None
        return RMSNorm(
            size, epsilon=shape.norm_epsilon, axis="head_dim", affine=shape.norm_affine, context=self.context
        )
