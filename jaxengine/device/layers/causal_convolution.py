"""A causal convolution over a few positions, channel by channel: what a sequence keeps of it are its last few inputs."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from jaxengine.device.layers.cache import Cache
from jaxengine.device.layers.context import ModelContext
from jaxengine.device.layers.keeps import State
from jaxengine.device.layers.step import Step
from pallas_kernels import take_rows
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
        self.context, self.axis = context, axis
        self.taps = context.parameter((taps, channels), ("positions", axis))
        self.bias = context.parameter((channels,), (axis,)) if bias else None

    def __call__(self, x: jax.Array, cache: Cache, step: Step) -> tuple[jax.Array, Cache]:
        """`x [N, C]` -> `[N, C]` and the cache with the state of every row's sequence."""
        kept = cache.state_of_rows(self.state.name, step)
        flat, by_row = ("tokens", self.axis), ("slots", *self.state.axes)
        on_devices = self.context.layout.per_device(
            self._convolve,
            inputs=(flat, by_row, ("positions", self.axis), (self.axis,), None, None, None),
            outputs=(flat, by_row),
        )
        bias = None if self.bias is None else self.bias[...]
        rows, begins = step.row_of_place, step.begin_of_place
        convolved, latest = on_devices(x, kept, self.taps[...], bias, step.offsets, rows, begins)
        return convolved, cache.with_state_of_rows(self.state.name, step, latest)

    def _convolve(
        self,
        x: jax.Array,
        kept: jax.Array,
        taps: jax.Array,
        bias: jax.Array | None,
        offsets: jax.Array,
        rows: jax.Array,
        begins: jax.Array,
    ) -> tuple[jax.Array, jax.Array]:
        """A device's channels: `x [N, C]` and what is kept of each row, `[B, taps - 1, ...]`, to `[N, C]` and what is kept then.

        What a place sees lies right before it, unless that was before its row: only this, and the last inputs of each row, are
        taken out of other rows.
        """
        take = partial(take_rows, platform=self.context.platform)
        taps, reach = taps.astype(x.dtype), len(taps) - 1
        before = kept.reshape(len(kept), reach, -1)
        into = (jnp.arange(len(x), dtype=jnp.int32) - begins)[:, None]
        of_place = take(before.reshape(len(kept), -1), rows, jnp.int32(len(rows))).reshape(len(x), reach, -1)
        convolved = x * taps[reach]
        for back in range(1, reach + 1):
            seen = jnp.pad(x, ((back, 0), (0, 0)))[: len(x)]
            for place in range(back):
                seen = jnp.where(into == place, of_place[:, reach + place - back].astype(x.dtype), seen)
            convolved += seen * taps[reach - back]
        if bias is not None:
            convolved += bias.astype(convolved.dtype)

        counts = (offsets[1:] - offsets[:-1])[:, None]
        last = (offsets[1:, None] - reach + jnp.arange(reach, dtype=jnp.int32)).reshape(-1)
        latest = take(x, last, jnp.int32(len(last))).reshape(before.shape)
        for count in range(reach):  # of a row with fewer tokens some are those before, or all
            moved = jnp.pad(before[:, count:], ((0, 0), (0, count), (0, 0))).astype(x.dtype)
            own = jnp.arange(reach) >= reach - count
            latest = jnp.where((counts == count)[..., None] & ~own[:, None], moved, latest)
        return convolved, latest.reshape(kept.shape)
