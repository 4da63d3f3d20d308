"""A causal convolution over a few positions, channel by channel: what a sequence keeps of it are its last few inputs."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from jaxengine.device.layers.cache import Cache
from jaxengine.device.layers.context import ModelContext
from jaxengine.device.layers.keeps import State
from jaxengine.device.layers.step import Step
from pallas_kernels.storage import LANES


class CausalConvolution(nnx.Module):
    """`taps` positions of `channels` channels, whose axis is `axis`. Its `state`, of this name, is one of its mixer's.

    The state has the inputs at a sequence's last positions, the latest behind. Channels that fill a TPU's vectors are cut into
    them: the rows of few sequences are then written where they lie. As `[taps - 1, C]` XLA lays all sequences' inputs out anew
    for that and back, in every layer (36 layers of 257 sequences, 2,048 channels on v6e: 157 thousand cycles each, and 28 so).
    """

    def __init__(self, channels: int, taps: int, *, bias: bool, axis: str, state: str, context: ModelContext) -> None:
        whole = channels // context.layout.shards(axis) % LANES == 0
        self.state = State(
            state,
            shape=(taps - 1, channels // LANES, LANES) if whole else (taps - 1, channels),
            axes=("positions", axis, "head_dim") if whole else ("positions", axis),
            dtype=jnp.dtype(context.activation_dtype),
        )
        self.taps = context.parameter((taps, channels), ("positions", axis))
        self.bias = context.parameter((channels,), (axis,)) if bias else None

    def __call__(self, x: jax.Array, cache: Cache, step: Step) -> tuple[jax.Array, Cache]:
        """`x [N, C]` -> `[N, C]` and the cache with the state of every row's sequence."""
        taps = self.taps[...].astype(x.dtype)
        reach = taps.shape[0] - 1
        kept = cache.state_of_rows(self.state.name, step)
        before = kept.reshape(len(kept), reach, x.shape[1])

        def at(rows: jax.Array, offsets: jax.Array) -> jax.Array:
            """Inputs at offsets into rows; at a negative one what the row's sequence had so far before it."""
            here = x[jnp.clip(step.offsets[rows] + offsets, 0, x.shape[0] - 1)]
            earlier = before[rows, jnp.clip(reach + offsets, 0, reach - 1)].astype(x.dtype)
            return jnp.where((offsets >= 0)[..., None], here, earlier)

        rows = step.row_of_place
        offsets = jnp.arange(x.shape[0], dtype=jnp.int32) - step.offsets[rows]
        convolved = x * taps[reach]
        for back in range(1, reach + 1):
            convolved += at(rows, offsets - back) * taps[reach - back]
        if self.bias is not None:
            convolved += self.bias[...].astype(convolved.dtype)

        every_row = jnp.arange(step.starts.shape[0], dtype=jnp.int32)[:, None]
        counts = (step.offsets[1:] - step.offsets[:-1])[:, None]
        latest = at(every_row, counts - reach + jnp.arange(reach, dtype=jnp.int32)[None])
        return convolved, cache.with_state_of_rows(self.state.name, step, latest.reshape(kept.shape))
