"""The Llama formula in plain JAX, for training only: pure functions over a dictionary of arrays.

The layers are stacked on a leading axis `L` and run unrolled. Kernels are kept as `[out, in]`, the layout of a Hugging
Face checkpoint, so that export is a slice and a cast. Letters: `B` rows, `S` places per row, `N` query heads, `K` KV
heads, `H` head size, `E` embedding, `F` feed-forward, `V` vocabulary, `L` layers.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

Params = dict[str, jax.Array]
HEAD_SCALE = 0.06  # first logits have a spread of about one


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The numbers of the architecture."""

    vocab_size: int
    hidden_size: int = 256
    num_layers: int = 4
    num_heads: int = 4
    num_kv_heads: int = 2
    head_size: int = 64
    ffn_size: int = 640
    rope_theta: float = 500000.0
    norm_eps: float = 1e-5
    max_positions: int = 1024


def shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """The shape of every parameter; names are those of the checkpoint without their prefix."""
    layers, embed, ffn = config.num_layers, config.hidden_size, config.ffn_size
    query, kv = config.num_heads * config.head_size, config.num_kv_heads * config.head_size
    return {
        "embed_tokens": (config.vocab_size, embed),
        "lm_head": (config.vocab_size, embed),
        "norm": (embed,),
        "input_layernorm": (layers, embed),
        "post_attention_layernorm": (layers, embed),
        "self_attn.q_proj": (layers, query, embed),
        "self_attn.k_proj": (layers, kv, embed),
        "self_attn.v_proj": (layers, kv, embed),
        "self_attn.o_proj": (layers, embed, query),
        "mlp.gate_proj": (layers, ffn, embed),
        "mlp.up_proj": (layers, ffn, embed),
        "mlp.down_proj": (layers, embed, ffn),
    }


def init(key: jax.Array, config: ModelConfig) -> Params:
    """Random parameters: kernels have the variance of their fan-in, and what writes to the residual stream is zero.

    The embedding has entries of one, so that what a token is stays visible beside all that is written to the residual stream
    later; the head starts as its small copy.
    """
    params: Params = {}
    for name, shape in shapes(config).items():
        key, draw = jax.random.split(key)
        if "norm" in name:
            params[name] = jnp.ones(shape, jnp.float32)
        elif name in ("self_attn.o_proj", "mlp.down_proj"):
            params[name] = jnp.zeros(shape, jnp.float32)
        else:
            scale = 1.0 if name == "embed_tokens" else shape[-1] ** -0.5
            params[name] = scale * jax.random.normal(draw, shape, jnp.float32)
    params["lm_head"] = HEAD_SCALE * params["embed_tokens"]
    return params


def num_params(config: ModelConfig) -> int:
    """How many numbers the model holds."""
    total = 0
    for shape in shapes(config).values():
        count = 1
        for size in shape:
            count *= size
        total += count
    return total


def rotary(positions: jax.Array, config: ModelConfig) -> tuple[jax.Array, jax.Array]:
    """Cosines and sines `[.., H]` of the positions, halves repeated as Hugging Face does."""
    half = jnp.arange(0, config.head_size, 2, dtype=jnp.float32) / config.head_size
    angles = positions[..., None].astype(jnp.float32) / (config.rope_theta**half)
    angles = jnp.concatenate([angles, angles], axis=-1)
    return jnp.cos(angles), jnp.sin(angles)


def rotate(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """Heads `[.., S, H]` turned by their positions."""
    first, second = jnp.split(x, 2, axis=-1)
    return x * cos + jnp.concatenate([-second, first], axis=-1) * sin


def norm(x: jax.Array, weight: jax.Array, eps: float) -> jax.Array:
    """`x` over its root mean square along the last axis, times `weight`."""
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def _attention(params: Params, layer: int, x: jax.Array, rope, mask: jax.Array, config: ModelConfig) -> jax.Array:
    """Grouped-query attention over `x [B, S, E]`; `mask [B, S, S]` is added to the scores."""
    batch, length, _ = x.shape
    heads, kv_heads, size = config.num_heads, config.num_kv_heads, config.head_size

    def project(name: str, count: int) -> jax.Array:
        return (x @ params[f"self_attn.{name}"][layer].T).reshape(batch, length, count, size).transpose(0, 2, 1, 3)

    query = rotate(project("q_proj", heads), *rope) * size**-0.5
    key = rotate(project("k_proj", kv_heads), *rope)
    value = project("v_proj", kv_heads)
    query = query.reshape(batch, kv_heads, heads // kv_heads * length, size)
    scores = jnp.einsum("bksh,bkth->bkst", query, key).reshape(batch, heads, length, length) + mask[:, None]
    weights = jax.nn.softmax(scores, axis=-1).reshape(batch, kv_heads, heads // kv_heads * length, length)
    out = jnp.einsum("bkst,bkth->bksh", weights, value).reshape(batch, heads, length, size)
    return out.transpose(0, 2, 1, 3).reshape(batch, length, heads * size) @ params["self_attn.o_proj"][layer].T


def _mlp(params: Params, layer: int, x: jax.Array) -> jax.Array:
    gate = jax.nn.silu(x @ params["mlp.gate_proj"][layer].T)
    return (gate * (x @ params["mlp.up_proj"][layer].T)) @ params["mlp.down_proj"][layer].T


def streams(params: Params, tokens: jax.Array, segments: jax.Array, config: ModelConfig) -> list[jax.Array]:
    """The residual stream `[B, S, E]` before each layer, and behind the last; a place sees the earlier ones of its segment."""
    length = tokens.shape[1]
    rope = rotary(jnp.arange(length), config)
    mask = causal_mask(segments)
    found = [params["embed_tokens"][tokens]]
    for layer in range(config.num_layers):
        x = found[-1]
        hidden = norm(x, params["input_layernorm"][layer], config.norm_eps)
        x = x + _attention(params, layer, hidden, rope, mask, config)
        hidden = norm(x, params["post_attention_layernorm"][layer], config.norm_eps)
        found.append(x + _mlp(params, layer, hidden))
    return found


def causal_mask(segments: jax.Array) -> jax.Array:
    """What is added to scores `[B, S, S]`, of `segments [B, S]`."""
    length = segments.shape[1]
    allowed = (segments[:, :, None] == segments[:, None, :]) & jnp.tril(jnp.ones((length, length), bool))
    return jnp.where(allowed, 0.0, -1e9)


def forward(params: Params, tokens: jax.Array, segments: jax.Array, config: ModelConfig) -> jax.Array:
    """Logits `[B, S, V]` of `tokens [B, S]`; a place sees the earlier places of its own segment."""
    x = streams(params, tokens, segments, config)[-1]
    return norm(x, params["norm"], config.norm_eps) @ params["lm_head"].T


def loss(params: Params, tokens: jax.Array, segments: jax.Array, config: ModelConfig) -> jax.Array:
    """Mean cross entropy in nats per token; `tokens` and `segments` are `[B, S + 1]`, a pad target has segment -1."""
    logits = forward(params, tokens[:, :-1], segments[:, :-1], config)
    targets = tokens[:, 1:]
    weights = ((segments[:, 1:] == segments[:, :-1]) & (segments[:, 1:] >= 0)).astype(jnp.float32)
    picked = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    return jnp.sum((jax.nn.logsumexp(logits, axis=-1) - picked) * weights) / jnp.maximum(jnp.sum(weights), 1.0)
