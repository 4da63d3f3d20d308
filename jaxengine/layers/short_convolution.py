"""A causal convolution over a few positions, with gates before and behind it (LFM2): what it keeps are the last few inputs."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
from flax import nnx

from jaxengine.layers import sharding
from jaxengine.layers.cache import Cache
from jaxengine.layers.context import ModelContext
from jaxengine.layers.linear import Linear
from jaxengine.layers.step import Step


class ShortConvolution(nnx.Module):
    """`output(after * convolution(before * x))`, the three of them projections of the input, channel by channel.

    A mixer. Its state, number `state` of the cache's, is `[layers, slots, taps - 1, E]`: the inputs of the convolution at a
    sequence's last positions, the latest behind.
    """

    def __init__(self, width: int, taps: int, *, bias: bool, state: int, context: ModelContext) -> None:
        self.context = context
        self.state = state
        self.before, self.after, self.value = (
            Linear(width, width, axes=("mlp", "embed"), bias=bias, context=context) for _ in range(3)
        )
        self.taps = context.parameter((taps, width), ("positions", "mlp"))
        self.bias = context.parameter((width,), ("mlp",)) if bias else None
        self.output = Linear(width, width, axes=("embed", "mlp"), bias=bias, context=context)

    def __call__(self, x: jax.Array, cache: Cache, step: Step) -> tuple[jax.Array, Cache]:
        """`x [N, E]` -> `[N, E]` and the cache with the state of every row's sequence."""
        mesh = self.context.mesh
        gated = sharding.constrain(self.before(x) * self.value(x), ("tokens", "mlp"), mesh=mesh)
        convolved, changed = self._convolve(gated, cache.states[self.state], step)
        output = self.output(self.after(x) * convolved)
        states = (*cache.states[: self.state], changed, *cache.states[self.state + 1 :])
        return sharding.constrain(output, ("tokens", "embed"), mesh=mesh), replace(cache, states=states)

    def _convolve(self, gated: jax.Array, states: jax.Array, step: Step) -> tuple[jax.Array, jax.Array]:
        """`gated [N, E]`, all states -> `[N, E]`, the states."""
        assert step.row_slots is not None
        taps = self.taps[...].astype(gated.dtype)
        reach = taps.shape[0] - 1
        before = states[step.lane, step.row_slots]
        before = jnp.where((step.starts > 0)[:, None, None], before, jnp.zeros((), before.dtype))

        def at(rows: jax.Array, offsets: jax.Array) -> jax.Array:
            """Inputs at offsets into rows; at a negative one what the row's sequence had so far before it."""
            here = gated[jnp.clip(step.offsets[rows] + offsets, 0, gated.shape[0] - 1)]
            kept = before[rows, jnp.clip(reach + offsets, 0, reach - 1)].astype(gated.dtype)
            return jnp.where((offsets >= 0)[..., None], here, kept)

        rows = step.row_of_place
        offsets = jnp.arange(gated.shape[0], dtype=jnp.int32) - step.offsets[rows]
        convolved = gated * taps[reach]
        for back in range(1, reach + 1):
            convolved += at(rows, offsets - back) * taps[reach - back]
        if self.bias is not None:
            convolved += self.bias[...].astype(convolved.dtype)

        every_row = jnp.arange(step.starts.shape[0], dtype=jnp.int32)[:, None]
        counts = (step.offsets[1:] - step.offsets[:-1])[:, None]
        latest = at(every_row, counts - reach + jnp.arange(reach, dtype=jnp.int32)[None])
        return convolved, states.at[step.lane, step.row_slots].set(latest.astype(states.dtype))
