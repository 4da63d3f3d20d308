"""The mixer of RWKV-7: a state that forgets by channel, replaces what it has for a key, and learns values by another."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from jaxengine.device.layers.attention import HEADS
from jaxengine.device.layers.cache import Cache
from jaxengine.device.layers.context import ModelContext
from jaxengine.device.layers.keeps import Keeps, PerSlot, State
from jaxengine.device.layers.linear import Linear
from jaxengine.device.layers.low_rank import LowRank
from jaxengine.device.layers.norm import by_deviation, by_root_mean_square
from jaxengine.device.layers.sharding import Layout
from jaxengine.device.layers.step import Step
from jaxengine.device.layers.token_shift import TokenShift
from pallas_kernels import generalised_delta, mean_last
from pallas_kernels.storage import LANES

RULE = "generalised delta rule"
STATES = ("slots", "heads", "head_dim", "states")
CHANNELS = ("tokens", "heads")
FASTEST_DECAY = -0.6065306597126334
"""The logarithm of what is left at least of a state's channel at each token: minus the square root of 1 / e."""


@dataclass(frozen=True, kw_only=True)
class TimeMixShape:
    """`heads` of `head_dim` channels. Decays, rates, gates and how much is taken of the first layer's values go through a rank.

    `length_epsilon` is added to the squared length of keys before they are divided by it, `norm_epsilon` is that of the norm of
    each head's results.
    """

    width: int
    heads: int
    head_dim: int
    decay_rank: int
    rate_rank: int
    gate_rank: int
    value_rank: int
    norm_epsilon: float
    length_epsilon: float

    @property
    def channels(self) -> int:
        """Of all heads."""
        return self.heads * self.head_dim

    def tiles(self, layout: Layout) -> tuple[int, int, int]:
        """The states as `generalised_delta` has them: heads side by side fill a TPU's vectors where those of a device can."""
        together = LANES // self.head_dim if LANES % self.head_dim == 0 else 1
        if self.heads // layout.shards("heads") % together:
            together = 1
        return self.heads // together, self.head_dim, together * self.head_dim


class TimeMix(nnx.Module):
    """On a mesh every device has its own heads. The `first` layer gives its values to all others."""

    def __init__(self, shape: TimeMixShape, *, first: bool, context: ModelContext) -> None:
        self.shape, self.context = shape, context
        channels = shape.channels
        self.shift = TokenShift(
            shape.width, ("q", "decay", "k", "v", "rate", "gate"), state="shift of the mixer", context=context
        )
        self.q, self.k, self.v = (
            Linear(shape.width, channels, axes=("heads", "embed"), bias=False, context=context) for _ in range(3)
        )
        low_rank = partial(LowRank, shape.width, channels=channels, context=context)
        self.decay = low_rank(shape.decay_rank, activation="tanh", bias=True)
        self.rate = low_rank(shape.rate_rank, bias=True)
        self.gate = low_rank(shape.gate_rank, activation="sigmoid")
        self.value_mix = None if first else low_rank(shape.value_rank, bias=True)
        self.removed_scale, self.rate_scale, self.norm_scale, self.norm_bias = (
            context.parameter((channels,), ("heads",)) for _ in range(4)
        )
        self.bonus = context.parameter((shape.heads, shape.head_dim), ("heads", "head_dim"))
        self.o = Linear(channels, shape.width, axes=("embed", "heads"), bias=False, context=context)

    @property
    def keeps(self) -> Keeps:
        """The last input, and the state of the rule."""
        rule = State(RULE, self.shape.tiles(self.context.layout), axes=STATES[1:], dtype=jnp.dtype(jnp.float32))
        return (PerSlot((self.shift.state, rule)),)

    def __call__(
        self, x: jax.Array, first_values: jax.Array, cache: Cache, step: Step
    ) -> tuple[jax.Array, jax.Array, Cache]:
        """`x [N, E]`, and of the first layer `[N, heads * H]` -> `[N, E]`, the first layer's values, and the cache."""
        layout, dtype = self.context.layout, self.context.activation_dtype
        (for_q, for_decay, for_k, for_v, for_rate, for_gate), cache = self.shift(x, cache, step)
        q, k, v = self.q(for_q, step), self.k(for_k, step).astype(jnp.float32), self.v(for_v, step)
        if self.value_mix is None:
            first_values = v
        else:
            v = v + (first_values - v) * _sigmoid(self.value_mix(for_v, step)).astype(dtype)
        rates = _sigmoid(self.rate(for_rate, step))
        removed = self._of_length_one(self._heads(k * self._wide(self.removed_scale)))
        k = k * (1 + (rates - 1) * self._wide(self.rate_scale))
        q, k, v = (self._heads(numbers) for numbers in (q, k.astype(dtype), v))
        decays = self._heads(FASTEST_DECAY * _sigmoid(self.decay(for_decay, step)))

        before, slots = cache.states_by_slot(RULE, step)
        rows = (slots, step.starts, step.offsets)
        out, states = self._learn(q, k, v, decays, removed, self._heads(rates), before, *rows)
        out = self._with_bonus(self._normed(out), q, k, v).astype(dtype) * self.gate(for_gate, step)
        output = layout.constrain(self.o(out, step), ("tokens", "embed"))
        return output, first_values, cache.with_states(RULE, states)

    def _learn(self, *arguments: jax.Array) -> tuple[jax.Array, jax.Array]:
        """As `generalised_delta`, every device its heads."""
        context = self.context
        on_devices = context.layout.per_device(
            partial(generalised_delta, precision=context.precision, platform=context.platform),
            inputs=(*(HEADS,) * 6, STATES, None, None, None),
            outputs=(HEADS, STATES),
        )
        result: tuple[jax.Array, jax.Array] = on_devices(*arguments)
        return result

    def _heads(self, x: jax.Array) -> jax.Array:
        """`[N, heads * H]` -> `[N, heads, H]`."""
        return self.context.layout.constrain(x.reshape(len(x), self.shape.heads, -1), HEADS)

    def _of_length_one(self, x: jax.Array) -> jax.Array:
        """`x [N, heads, H]`, float32."""
        size = self.shape.head_dim
        return by_root_mean_square(x, epsilon=self.shape.length_epsilon / size, context=self.context) * size**-0.5

    def _normed(self, out: jax.Array) -> jax.Array:
        """`[N, heads, H]`, each head by itself -> float32 `[N, heads * H]`."""
        normed = by_deviation(out, epsilon=self.shape.norm_epsilon, context=self.context).reshape(len(out), -1)
        return normed * self._wide(self.norm_scale) + self._wide(self.norm_bias)

    def _with_bonus(self, out: jax.Array, q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        """`out [N, heads * H]` and of each token its own value once more, as much as its query is like its key."""
        q, k, v = (x.astype(jnp.float32) for x in (q, k, v))
        alike = mean_last(q * k * self._wide(self.bonus), platform=self.context.platform) * self.shape.head_dim
        return out + (alike * v).reshape(out.shape)

    def _wide(self, parameter: nnx.Param[jax.Array]) -> jax.Array:
        return parameter[...].astype(jnp.float32)


def _sigmoid(x: jax.Array) -> jax.Array:
    """In float32."""
    return jax.nn.sigmoid(x.astype(jnp.float32))
