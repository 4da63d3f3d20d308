"""What a layer sees of the token before each one (RWKV): of a sequence its last input is kept."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from jaxengine.device.layers.cache import Cache
from jaxengine.device.layers.context import ModelContext
from jaxengine.device.layers.keeps import State
from jaxengine.device.layers.step import Step
from pallas_kernels.storage import LANES


class TokenShift(nnx.Module):
    """Mixes each token with the one before it, channel by channel, once for each of `names`. Its `state` is one of its layer's.

    As in `CausalConvolution` a state that fills a TPU's vectors is cut into them.
    """

    def __init__(self, width: int, names: tuple[str, ...], *, state: str, context: ModelContext) -> None:
        self.context = context
        whole = width % LANES == 0
        self.state = State(
            state,
            shape=(width // LANES, LANES) if whole else (width,),
            axes=("embed", "head_dim") if whole else ("embed",),
            dtype=jnp.dtype(context.activation_dtype),
        )
        self.names = names
        self.of = nnx.Dict({name: context.parameter((width,), ("embed",)) for name in names})

    def __call__(self, x: jax.Array, cache: Cache, step: Step) -> tuple[list[jax.Array], Cache]:
        """`x [N, E]` -> such, mixed, for each name, and the cache with the state of every row's sequence."""
        rows, places = step.row_of_place, jnp.arange(len(x), dtype=jnp.int32)
        if self.context.platform == "cpu":
            # XLA computes a norm again in each loop that reads it, and may round what is kept otherwise than what is mixed here.
            # What was scattered it can only read.
            x = jnp.zeros_like(x).at[places].set(x)
        kept = cache.state_of_rows(self.state.name, step)
        before = kept.reshape(len(kept), x.shape[1]).astype(x.dtype)
        begins = places == step.begin_of_place
        change = jnp.where(begins[:, None], before[rows], x[jnp.maximum(places - 1, 0)]) - x
        mixed = [x + change * self.of[name][...].astype(x.dtype) for name in self.names]

        ends = step.offsets[1:]
        last = x[jnp.maximum(ends - 1, 0)]
        latest = jnp.where((ends > step.offsets[:-1])[:, None], last, before)
        return mixed, cache.with_state_of_rows(self.state.name, step, latest.reshape(kept.shape))
