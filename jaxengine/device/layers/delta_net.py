"""Linear attention by the gated delta rule: a state that learns values by keys, forgets, and answers queries.

A head forgets as a whole (Qwen3-Next), or each channel of its keys by itself (Kimi Linear).
"""

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
from jaxengine.device.layers.low_rank import LowRank
from jaxengine.device.layers.norm import by_root_mean_square
from jaxengine.device.layers.step import Step
from pallas_kernels import gated_delta

RULE = "delta rule"
STATES = ("slots", "heads", "head_dim", "states")
LENGTH_EPSILON = 1e-6
"""What is added to the squared length of queries and keys before they are divided by it."""


@dataclass(frozen=True, kw_only=True)
class DeltaNetShape:
    """`key_heads` of `key_size` channels for queries and keys, which `heads` of `value_size` share. Convolutions see `taps`.

    With a `rank` decays are of each channel of a key; they and the gates, sigmoids then, are made through so many numbers.
    """

    width: int
    key_heads: int
    key_size: int
    heads: int
    value_size: int
    taps: int
    activation: str
    norm_epsilon: float
    rank: int | None = None

    def __post_init__(self) -> None:
        assert self.rank is None or self.key_heads == self.heads, "decays of a channel of keys that several heads share"

    @property
    def decaying(self) -> tuple[int, ...]:
        """Decays of a token."""
        return (self.heads,) if self.rank is None else (self.heads, self.key_size)

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Channels of queries, keys and values."""
        return self.key_heads * self.key_size, self.key_heads * self.key_size, self.heads * self.value_size


class DeltaNet(nnx.Module):
    """A mixer. On a mesh every device has its own heads."""

    def __init__(self, shape: DeltaNetShape, *, context: ModelContext) -> None:
        self.shape = shape
        self.context = context
        self.q, self.k, self.v = (self._inner(size) for size in shape.sizes)
        self.gate, self.decay = self._low_rank(shape.sizes[2]), self._low_rank(math.prod(shape.decaying))
        self.rate = self._inner(shape.heads)
        self.convolve_q, self.convolve_k, self.convolve_v = (
            CausalConvolution(size, shape.taps, bias=False, axis="heads", state=f"delta {name}", context=context)
            for name, size in zip("qkv", shape.sizes, strict=True)
        )
        self.decay_bias, self.log_decays = (
            context.parameter((size,), ("heads",), dtype=jnp.float32)
            for size in (math.prod(shape.decaying), shape.heads)
        )
        self.norm = context.parameter((shape.value_size,), ("head_dim",))
        self.o = Linear(shape.sizes[2], shape.width, axes=("embed", "heads"), bias=False, context=context)

    @property
    def keeps(self) -> Keeps:
        """The convolutions' inputs, and the state of the rule."""
        shape = self.shape
        rule = State(
            RULE,
            shape=(shape.heads, shape.key_size, shape.value_size),
            axes=STATES[1:],
            dtype=jnp.dtype(jnp.float32),
        )
        return (PerSlot((self.convolve_q.state, self.convolve_k.state, self.convolve_v.state, rule)),)

    def __call__(self, x: jax.Array, cache: Cache, step: Step) -> tuple[jax.Array, Cache]:
        """`x [N, E]` -> `[N, E]` and the cache with the states of every row's sequence."""
        shape, layout = self.shape, self.context.layout
        activate = ACTIVATIONS[shape.activation]
        q, k, v = project(x, step, self.q, self.k, self.v)
        q, cache = self.convolve_q(q, cache, step)
        k, cache = self.convolve_k(k, cache, step)
        v, cache = self.convolve_v(v, cache, step)
        q, k, v = (
            layout.constrain(activate(convolved).reshape(len(x), heads, -1), HEADS)
            for convolved, heads in ((q, shape.key_heads), (k, shape.key_heads), (v, shape.heads))
        )
        decays = jax.nn.softplus(self.decay(x, step).astype(jnp.float32) + self.decay_bias[...])
        decays = decays.reshape(len(x), *shape.decaying)
        log_decays = self.log_decays[...].reshape(-1, *(1,) * (len(shape.decaying) - 1))
        before, slots = cache.states_by_slot(RULE, step)
        out, states = self._learn(
            self._of_length_one(q) * shape.key_size**-0.5,
            self._of_length_one(k),
            v,
            -jnp.exp(log_decays) * decays,
            jax.nn.sigmoid(self.rate(x, step).astype(jnp.float32)),
            before,
            slots,
            step.starts,
            step.offsets,
        )
        cache = cache.with_states(RULE, states)
        output = self.o(self._gated(out, self.gate(x, step)), step)
        return layout.constrain(output, ("tokens", "embed")), cache

    def _learn(self, *arguments: jax.Array) -> tuple[jax.Array, jax.Array]:
        """As `gated_delta`, every device its heads."""
        context = self.context
        on_devices = context.layout.per_device(
            partial(gated_delta, precision=context.precision, platform=context.platform),
            inputs=(HEADS, HEADS, HEADS, HEADS[: 1 + len(self.shape.decaying)], HEADS[:2], STATES, None, None, None),
            outputs=(HEADS, STATES),
        )
        result: tuple[jax.Array, jax.Array] = on_devices(*arguments)
        return result

    def _of_length_one(self, x: jax.Array) -> jax.Array:
        """`x [N, K, H]`, float32."""
        size = self.shape.key_size
        return by_root_mean_square(x, epsilon=LENGTH_EPSILON / size, context=self.context) * size**-0.5

    def _gated(self, out: jax.Array, gate: jax.Array) -> jax.Array:
        """`out [N, heads, V]`, normalised by head, times the gate `[N, heads * V]` -> such, in the activation dtype."""
        dtype = self.context.activation_dtype
        normed = by_root_mean_square(out, epsilon=self.shape.norm_epsilon, context=self.context).astype(dtype)
        normed = (normed * self.norm[...].astype(dtype)).reshape(gate.shape)
        through = jax.nn.silu if self.shape.rank is None else jax.nn.sigmoid
        return (normed.astype(jnp.float32) * through(gate.astype(jnp.float32))).astype(dtype)

    def _low_rank(self, channels: int) -> Linear | LowRank:
        """A projection to heads, through few numbers where there are to be few."""
        rank = self.shape.rank
        return (
            self._inner(channels) if rank is None else LowRank(self.shape.width, rank, channels, context=self.context)
        )

    def _inner(self, channels: int) -> Linear:
        return Linear(self.shape.width, channels, axes=("heads", "embed"), bias=False, context=self.context)
