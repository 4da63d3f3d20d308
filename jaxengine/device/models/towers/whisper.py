"""The encoder of Whisper, and those made of it in Qwen2-Audio and Voxtral (arXiv 2212.04356)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxengine.device.layers.activation import ACTIVATIONS
from jaxengine.device.layers.block import Block
from jaxengine.device.layers.context import ModelContext
from jaxengine.device.layers.linear import Linear
from jaxengine.device.layers.mlp import MLP
from jaxengine.device.layers.norm import LayerNorm
from jaxengine.device.layers.row_attention import RowAttention
from jaxengine.device.layers.self_attention import AttentionShape
from jaxengine.device.layers.step import Shared
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.towers.places import ItemGrid, Places, starts
from jaxengine.device.models.towers.projectors import TwoLayers
from jaxengine.device.models.towers.step import TowerStep
from jaxengine.device.models.towers.tower import Tower, TowerConfig, gathered
from jaxengine.device.weights.rules import Ignore, Rule
from jaxengine.media.mel import FRAMES

EPSILON = 1e-5
CONVOLUTIONS = (("first", "conv1"), ("second", "conv2"))
TAPS = FRAMES // 2 + 1
"""Of both convolutions. The second one takes every second place."""


@dataclass(frozen=True, kw_only=True)
class WhisperTowerConfig(TowerConfig):
    """A frame has `mels` features; there are `positions` places of 20 ms at most. An embedding is made of `merge` places."""

    mels: int
    positions: int
    activation: str
    projector_activation: str = "gelu"

    @property
    def block(self) -> int:
        """Places of an embedding."""
        return self.merge

    @property
    def least(self) -> ItemGrid:
        """The shortest sound."""
        return ItemGrid(1, 1, self.merge)


def convolution(tensor: Any, config: Any, shape: tuple[int, ...]) -> Any:
    """`[out, in, taps]` becomes `[out, taps * in]`."""
    return tensor.swapaxes(1, 2).reshape(len(tensor), -1)


def encoder_weights(prefix: str) -> tuple[Rule | Ignore, ...]:
    """The table of an encoder whose tensors begin with `prefix`."""
    at = f"{prefix}layers.*"
    norms = (("scale", "weight"), ("bias", "bias"))
    return (
        *(Rule(f"{ours}.weight", f"{prefix}{theirs}.weight", convolution) for ours, theirs in CONVOLUTIONS),
        *(Rule(f"{ours}.bias", f"{prefix}{theirs}.bias") for ours, theirs in CONVOLUTIONS),
        Rule("positions", f"{prefix}embed_positions.weight"),
        *(
            Rule(f"layers.*.attention.{ours}.{kind}", f"{at}.self_attn.{theirs}.{kind}")
            for ours, theirs in (("q", "q_proj"), ("k", "k_proj"), ("v", "v_proj"), ("o", "out_proj"))
            for kind in ("weight", "bias")
            if (ours, kind) != ("k", "bias")
        ),
        *(
            Rule(f"layers.*.{ours}.{name}", f"{at}.{theirs}.{kind}")
            for ours, theirs in (("attention_norm", "self_attn_layer_norm"), ("mlp_norm", "final_layer_norm"))
            for name, kind in norms
        ),
        *(
            Rule(f"layers.*.mlp.{ours}.{kind}", f"{at}.{theirs}.{kind}")
            for ours, theirs in (("up", "fc1"), ("down", "fc2"))
            for kind in ("weight", "bias")
        ),
        *(Rule(f"final.{name}", f"{prefix}layer_norm.{kind}") for name, kind in norms),
    )


class WhisperTower(Tower):
    """A `Tower`: two convolutions, as products of the frames around a place, and layers in which all places see each other."""

    WEIGHTS: ClassVar[Sequence[Rule | Ignore]] = encoder_weights("[model.]encoder.")
    IGNORED: ClassVar[Mapping[str, Ignored]] = {
        **dict.fromkeys(
            (
                *("dropout", "attention_dropout", "activation_dropout", "encoder_layerdrop", "layerdrop", "init_std"),
                *("initializer_range", "scale_embedding"),
            ),
            Ignored("only used in training, or of texts"),
        )
    }
    config: WhisperTowerConfig

    def __init__(self, config: WhisperTowerConfig, context: ModelContext) -> None:
        self.config, self.context = config, context
        width = config.width
        self.first = Linear(TAPS * config.mels, width, axes=("embed", "patch"), bias=True, context=context)
        self.second = Linear(TAPS * width, width, axes=("embed", "patch"), bias=True, context=context)
        self.positions = context.parameter((config.positions, width), ("positions", "embed"))
        self.layers = nnx.List([self.block() for _ in range(config.num_layers)])
        self.final = self.norm()

    def norm(self) -> LayerNorm:
        """A norm of the stream."""
        return LayerNorm(self.config.width, epsilon=EPSILON, affine=True, context=self.context)

    def block(self) -> Block:
        """A layer."""
        config = self.config
        shape = AttentionShape(
            width=config.width,
            num_heads=config.num_heads,
            num_kv_heads=config.num_heads,
            head_dim=config.head_dim,
            scale=config.head_dim**-0.5,
            qkv_bias=True,
            key_bias=False,
            output_bias=True,
        )
        mlp = MLP(config.width, config.mlp_size, activation=config.activation, bias=True, context=self.context)
        return Block(RowAttention(shape, context=self.context), mlp, norm=self.norm)

    @staticmethod
    def places(config: WhisperTowerConfig, grids: Sequence[ItemGrid]) -> Places:
        """Of items of `frames` spans of `width` places; the last ones of a span that do not fill an embedding are seen and make
        none."""
        positions, taken = [], []
        before = 0
        widths = [grid.width for grid in grids for _ in range(grid.frames)]
        for width in widths:
            positions.append(np.arange(width, dtype=np.int32))
            taken.append(np.arange(width // config.merge * config.merge, dtype=np.int32) + before)
            before += width
        offsets, at = starts(widths), np.concatenate(positions)
        return Places(
            offsets=offsets,
            windows=offsets,
            positions=np.stack([np.zeros_like(at), at], axis=-1),
            table=at[:, None],
            shares=np.ones((before, 1), np.float32),
            taken=np.concatenate(taken).reshape(-1, config.merge),
            order=np.arange(before, dtype=np.int32),
        )

    def embed_patches(self, patches: jax.Array, step: TowerStep) -> tuple[jax.Array, Shared]:
        dtype, mels = self.context.activation_dtype, self.config.mels
        at = step.positions[:, 1]
        frames = patches.astype(dtype)
        around = [
            jax.nn.gelu(self.first(frames[:, tap * mels : (tap + TAPS) * mels], None), approximate=False)
            for tap in range(TAPS)
        ]
        # What lies before the first place is nothing to the second convolution, and not what the first makes of nothing.
        around[0] = jnp.where((at > 0)[:, None], around[0], jnp.zeros((), dtype))
        x = jax.nn.gelu(self.second(jnp.concatenate(around, axis=-1), None), approximate=False)
        return x + jnp.take(self.positions[...], at, axis=0, mode="clip").astype(dtype), Shared()

    def embeddings(self, x: jax.Array, tapped: Sequence[jax.Array], step: TowerStep) -> jax.Array:
        return self.final(x)


class Qwen2AudioTower(WhisperTower):
    """An embedding is the mean of two places, normalised and projected (arXiv 2407.10759)."""

    WEIGHTS: ClassVar[Sequence[Rule | Ignore]] = (
        *encoder_weights("[model.]audio_tower."),
        *(Rule(f"projector.{kind}", f"[model.]multi_modal_projector.linear.{kind}") for kind in ("weight", "bias")),
    )

    def __init__(self, config: WhisperTowerConfig, context: ModelContext) -> None:
        super().__init__(config, context)
        self.projector = Linear(config.width, config.out_size, axes=("embed", "mlp"), bias=True, context=context)

    def embeddings(self, x: jax.Array, tapped: Sequence[jax.Array], step: TowerStep) -> jax.Array:
        means = jnp.take(x, step.taken, axis=0, mode="clip").astype(jnp.float32).mean(axis=1)
        return self.projector(self.final(means.astype(x.dtype)), None)


class VoxtralTower(WhisperTower):
    """An embedding is a projection of four places side by side (arXiv 2507.13264)."""

    WEIGHTS: ClassVar[Sequence[Rule | Ignore]] = (
        *encoder_weights("[model.]audio_tower."),
        *(
            Rule(f"projector.{ours}.weight", f"[model.]multi_modal_projector.{theirs}.weight")
            for ours, theirs in (("up", "linear_1"), ("down", "linear_2"))
        ),
    )

    def __init__(self, config: WhisperTowerConfig, context: ModelContext) -> None:
        super().__init__(config, context)
        wide = config.width * config.merge
        activation = config.projector_activation
        self.projector = TwoLayers(wide, config.out_size, activation=activation, bias=False, context=context)

    def embeddings(self, x: jax.Array, tapped: Sequence[jax.Array], step: TowerStep) -> jax.Array:
        return self.projector(gathered(self.final(x), step))


def read_encoder(reader: ConfigReader, *, out_size: int | None = None, merge: int = 1) -> WhisperTowerConfig:
    """Of Whisper's config.json, or of `audio_config` of what is made of it."""
    width = reader.size("d_model") if reader.raw("d_model") is not None else reader.size("hidden_size")
    mels = reader.optional_size("num_mel_bins", 80)
    return WhisperTowerConfig(
        width=width,
        num_layers=_either(reader, "encoder_layers", "num_hidden_layers"),
        num_heads=_either(reader, "encoder_attention_heads", "num_attention_heads"),
        mlp_size=_either(reader, "encoder_ffn_dim", "intermediate_size"),
        patch_values=FRAMES * mels,
        merge=merge,
        out_size=width if out_size is None else out_size,
        mels=mels,
        positions=reader.optional_size("max_source_positions", 1500),
        activation=reader.choice("activation_function", "gelu", ACTIVATIONS),
    )


def _either(reader: ConfigReader, name: str, other: str) -> int:
    return reader.size(name if reader.raw(name) is not None else other)
