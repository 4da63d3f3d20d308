"""Apertus: Llama with norms of each head and a plain feed-forward of xIELU, whose shape is learned."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from jaxengine.device.layers.block import FeedForward
from jaxengine.device.layers.context import ModelContext
from jaxengine.device.layers.linear import Linear
from jaxengine.device.layers.step import Step
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.rotary_config import RotaryDecoderConfig, read_shared
from jaxengine.device.models.shared.rotary_decoder import QK_NORMS, WITHOUT_MLP, RotaryDecoder, bias_rules
from jaxengine.device.weights.rules import Array, KvHeads, Rule, renamed

NORMS = {"input_layernorm": "attention_layernorm", "post_attention_layernorm": "feedforward_layernorm"}
"""Llama's names of norms, and Apertus'."""


def one(number: Array, config: KvHeads, shape: tuple[int, ...]) -> Array:
    """A number, stored with an axis or without."""
    return number.reshape(shape)


class XieluMLP(nnx.Module):
    """`down(xielu(up(x)))`, xIELU of arXiv:2411.13010: a parabola above zero, an exponential beneath, of learned steepness."""

    def __init__(self, width: int, inner: int, *, context: ModelContext) -> None:
        self.context = context
        self.up = Linear(width, inner, axes=("mlp", "embed"), bias=False, context=context)
        self.down = Linear(inner, width, axes=("embed", "mlp"), bias=False, context=context)
        self.above, self.beneath, self.slope, self.nearest = (
            context.parameter((1,), ("groups",), dtype=jnp.float32) for _ in range(4)
        )

    def __call__(self, x: jax.Array, step: Step) -> jax.Array:
        inner = self._xielu(self.up(x, step).astype(jnp.float32)).astype(x.dtype)
        inner = self.context.layout.constrain_stream(inner, "mlp", platform=self.context.platform)
        return self.down(inner, step)

    def _xielu(self, x: jax.Array) -> jax.Array:
        slope = self.slope[...]
        above, beneath = jax.nn.softplus(self.above[...]), slope + jax.nn.softplus(self.beneath[...])
        curved = jnp.where(x > 0, above * x * x, (jnp.expm1(jnp.minimum(x, self.nearest[...])) - x) * beneath)
        return curved + slope * x


class ApertusForCausalLM(RotaryDecoder):
    """A `Model`."""

    WEIGHTS = (
        *renamed(WITHOUT_MLP, NORMS),
        *QK_NORMS,
        *bias_rules("q", "k", "v", "o"),
        Rule("layers.*.mlp.up.weight", "[model.]layers.*.mlp.up_proj.weight"),
        Rule("layers.*.mlp.down.weight", "[model.]layers.*.mlp.down_proj.weight"),
        Rule("layers.*.mlp.above", "[model.]layers.*.mlp.act_fn.alpha_p", one),
        Rule("layers.*.mlp.beneath", "[model.]layers.*.mlp.act_fn.alpha_n", one),
        Rule("layers.*.mlp.slope", "[model.]layers.*.mlp.act_fn.beta", one),
        Rule("layers.*.mlp.nearest", "[model.]layers.*.mlp.act_fn.eps", one),
    )

    @classmethod
    def read_config(cls, reader: ConfigReader) -> RotaryDecoderConfig:
        shared = read_shared(
            reader, kv_heads=None, head_dim=None, theta=12e6, epsilon=1e-5, activation="xielu", activations=("xielu",)
        )
        attention_bias = reader.optional("attention_bias", False, bool)
        return RotaryDecoderConfig(
            **shared,
            windows=(None,) * shared["num_layers"],
            qkv_bias=attention_bias,
            output_bias=attention_bias,
            qk_norm=True,
        )

    def feed_forward(self, layer: int) -> FeedForward:
        return XieluMLP(self.config.hidden_size, self.config.mlp_size, context=self.context)
