"""A small model whose layers keep heads of two shapes, and its forward pass written out: what no family here has yet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
import pytest
from numpy.typing import NDArray

from jaxengine.device.layers.rotary import Rope
from jaxengine.device.layers.self_attention import AttentionShape
from jaxengine.device.layers.step import Shared
from jaxengine.device.models import registry
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.rotary_config import RotaryDecoderConfig, read_shared, read_windows
from jaxengine.device.models.shared.rotary_decoder import ROTARY_DECODER_WEIGHTS, RotaryDecoder
from jaxengine.startup import program_context
from pallas_kernels import AdapterRows
from tests.device.models.cases import random_tensors

ARCHITECTURE = "TwoShapesForCausalLM"
WINDOW = 6
CONFIG = {
    "architectures": [ARCHITECTURE],
    "model_type": "two_shapes",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 8,
    "vocab_size": 96,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "use_sliding_window": True,
    "sliding_window": WINDOW,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "float32",
}


@contextmanager
def known() -> Iterator[None]:
    """The model is one of those that are built, and its code is looked for where it is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(registry.LISTED, ARCHITECTURE, f"{__name__}:{ARCHITECTURE}")
        patch.setattr(program_context, "PACKAGES", (*program_context.PACKAGES, "tests"))
        yield


@dataclass(frozen=True, kw_only=True)
class TwoShapesConfig(RotaryDecoderConfig):
    """`large_rope` turns the larger heads."""

    large_rope: Rope


class TwoShapesForCausalLM(RotaryDecoder):
    """Layers that see everything have half as many KV heads as those with a window, of twice the size."""

    WEIGHTS = ROTARY_DECODER_WEIGHTS
    config: TwoShapesConfig

    @classmethod
    def read_config(cls, reader: ConfigReader) -> TwoShapesConfig:
        shared = read_shared(reader, kv_heads=4, head_dim=8)
        return TwoShapesConfig(
            **shared,
            windows=read_windows(reader, shared["num_layers"]),
            qkv_bias=False,
            output_bias=False,
            mlp_bias=False,
            qk_norm=False,
            large_rope=replace(shared["rope"], head_dim=2 * shared["head_dim"]),
        )

    def attention_shape(self, layer: int) -> AttentionShape:
        shape = super().attention_shape(layer)
        if shape.window is not None:
            return shape
        size = 2 * shape.head_dim
        return replace(shape, num_kv_heads=shape.num_kv_heads // 2, head_dim=size, scale=size**-0.5, rope=1)

    def embed_tokens(
        self, tokens: jax.Array, positions: jax.Array, adapters: AdapterRows | None = None
    ) -> tuple[jax.Array, Shared]:
        x, shared = super().embed_tokens(tokens, positions, adapters)
        return x, Shared((*shared.angles, self.config.large_rope.angles(positions)))


def tensors(config: Mapping[str, Any] = CONFIG) -> dict[str, np.ndarray]:
    """A random checkpoint."""
    width, inner = config["hidden_size"], config["intermediate_size"]
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config["vocab_size"], width),
        "model.norm.weight": (width,),
    }
    for layer, kind in enumerate(config["layer_types"]):
        heads, kv_heads, size = _heads(config, kind)
        prefix = f"model.layers.{layer}."
        shapes |= {
            f"{prefix}input_layernorm.weight": (width,),
            f"{prefix}post_attention_layernorm.weight": (width,),
            f"{prefix}self_attn.q_proj.weight": (heads * size, width),
            f"{prefix}self_attn.k_proj.weight": (kv_heads * size, width),
            f"{prefix}self_attn.v_proj.weight": (kv_heads * size, width),
            f"{prefix}self_attn.o_proj.weight": (width, heads * size),
            f"{prefix}mlp.gate_proj.weight": (inner, width),
            f"{prefix}mlp.up_proj.weight": (inner, width),
            f"{prefix}mlp.down_proj.weight": (width, inner),
        }
    return random_tensors(shapes)


def dense_logprobs(prompt: Sequence[int], weights: Mapping[str, np.ndarray]) -> NDArray[np.float64]:
    """Log probabilities `[tokens, V]` after every token of a prompt, in float64, without pages, rows or caches."""
    table = weights["model.embed_tokens.weight"].astype(np.float64)
    x = table[list(prompt)]
    for layer, kind in enumerate(CONFIG["layer_types"]):
        mine = {name: weights[f"model.layers.{layer}.{name}.weight"].astype(np.float64) for name in _NAMES}
        x = x + _attend(_norm(x, mine["input_layernorm"]), mine, kind) @ mine["self_attn.o_proj"].T
        y = _norm(x, mine["post_attention_layernorm"])
        gate, up = y @ mine["mlp.gate_proj"].T, y @ mine["mlp.up_proj"].T
        x = x + (gate / (1 + np.exp(-gate)) * up) @ mine["mlp.down_proj"].T
    logits = _norm(x, weights["model.norm.weight"]) @ table.T
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


_NAMES = (
    "input_layernorm",
    "post_attention_layernorm",
    *(f"self_attn.{name}_proj" for name in "qkvo"),
    *(f"mlp.{name}_proj" for name in ("gate", "up", "down")),
)


def _heads(config: Mapping[str, Any], kind: str) -> tuple[int, int, int]:
    """Query heads, KV heads and their size."""
    heads, kv_heads, size = (config[name] for name in ("num_attention_heads", "num_key_value_heads", "head_dim"))
    return (heads, kv_heads, size) if kind == "sliding_attention" else (heads, kv_heads // 2, 2 * size)


def _norm(x: NDArray[np.float64], scale: np.ndarray) -> NDArray[np.float64]:
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + CONFIG["rms_norm_eps"]) * scale


def _attend(x: NDArray[np.float64], weights: Mapping[str, NDArray[np.float64]], kind: str) -> NDArray[np.float64]:
    """The heads' outputs, side by side."""
    heads, kv_heads, size = _heads(CONFIG, kind)
    q, k, v = (x @ weights[f"self_attn.{name}_proj"].T for name in "qkv")
    q, k, v = (projected.reshape(len(x), -1, size) for projected in (q, k, v))
    q, k = _turn(q), _turn(k)
    k, v = (np.repeat(kept, heads // kv_heads, axis=1) for kept in (k, v))
    scores = np.einsum("shd,thd->hst", q, k) * size**-0.5
    back = np.arange(len(x))[:, None] - np.arange(len(x))
    unseen = (back < 0) | (back >= WINDOW if kind == "sliding_attention" else False)
    scores = np.where(unseen, -np.inf, scores)
    shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares /= shares.sum(axis=-1, keepdims=True)
    return np.einsum("hst,thd->shd", shares, v).reshape(len(x), -1)


def _turn(x: NDArray[np.float64]) -> NDArray[np.float64]:
    half = x.shape[-1] // 2
    angles = np.arange(len(x))[:, None] * CONFIG["rope_theta"] ** (-np.arange(half) / half)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    first, second = x[..., :half], x[..., half:]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
