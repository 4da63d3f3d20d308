"""A causal convolution with gates before and behind it (LFM2)."""

from __future__ import annotations

import jax
from flax import nnx

from jaxengine.device.layers.cache import Cache
from jaxengine.device.layers.causal_convolution import CausalConvolution
from jaxengine.device.layers.context import ModelContext
from jaxengine.device.layers.keeps import Keeps, PerSlot
from jaxengine.device.layers.linear import Linear, project
from jaxengine.device.layers.step import Step


class ShortConvolution(nnx.Module):
    """`output(after * convolution(before * x))`, the three of them projections of the input, channel by channel.

    A mixer.
    """

    def __init__(self, width: int, taps: int, *, bias: bool, context: ModelContext) -> None:
        self.context = context
        self.before, self.after, self.value = (
            Linear(width, width, axes=("mlp", "embed"), bias=bias, context=context) for _ in range(3)
        )
        self.convolution = CausalConvolution(width, taps, bias=bias, axis="mlp", state="convolution", context=context)
        self.output = Linear(width, width, axes=("embed", "mlp"), bias=bias, context=context)

    @property
    def keeps(self) -> Keeps:
        """The convolution's inputs."""
        return (PerSlot((self.convolution.state,)),)

    def __call__(self, x: jax.Array, cache: Cache, step: Step) -> tuple[jax.Array, Cache]:
        """`x [N, E]` -> `[N, E]` and the cache with the state of every row's sequence."""
        layout = self.context.layout
        before, after, value = project(x, step, self.before, self.after, self.value)
        gated = layout.constrain(before * value, ("tokens", "mlp"))
        convolved, cache = self.convolution(gated, cache, step)
        return layout.constrain(self.output(after * convolved, step), ("tokens", "embed")), cache
