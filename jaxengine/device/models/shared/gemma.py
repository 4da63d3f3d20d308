"""What the generations of Gemma share: scaled embeddings, norms offset from 1, from the second on also behind each part."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxengine.device.models.shared.rotary_decoder import ROTARY_DECODER_WEIGHTS, bias_rules
from jaxengine.device.weights.rules import Ignore, Rule

NORM_OFFSET = 1.0
"""Checkpoints store by how much a norm's scale differs from this."""

NORM_SOURCES = {
    "layers.*.attention_output_norm.scale": "[model.]layers.*.post_attention_layernorm.weight",
    "layers.*.mlp_norm.scale": "[model.]layers.*.pre_feedforward_layernorm.weight",
    "layers.*.mlp_output_norm.scale": "[model.]layers.*.post_feedforward_layernorm.weight",
}
"""Where norms stand on both sides of attention and feed-forward."""

SANDWICH_NORM_WEIGHTS: tuple[Rule | Ignore, ...] = (
    *(row for row in ROTARY_DECODER_WEIGHTS if not isinstance(row, Rule) or row.target not in NORM_SOURCES),
    *(Rule(target, source) for target, source in NORM_SOURCES.items()),
    *bias_rules("q", "k", "v", "o"),
)


def scale_embeddings(x: jax.Array, *, hidden_size: int, dtype: jax.typing.DTypeLike) -> jax.Array:
    """Embeddings times the root of their size, a factor that is rounded as weights of `dtype` are."""
    factor = jnp.sqrt(jnp.float32(hidden_size)).astype(dtype)
    return x * factor.astype(x.dtype)
