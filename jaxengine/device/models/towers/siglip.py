"""Towers with SigLIP's layers: Gemma 3's, whose embeddings are means of patches, and SmolVLM's, which puts them side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from jaxengine.device.layers.activation import ACTIVATIONS
from jaxengine.device.layers.context import ModelContext
from jaxengine.device.layers.linear import Linear
from jaxengine.device.layers.norm import RMSNorm
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.towers.clip import PROJECTOR, SIGLIP_NAMES
from jaxengine.device.models.towers.step import TowerStep
from jaxengine.device.models.towers.tower import flat_filters, gathered
from jaxengine.device.models.towers.vit import VisionTransformer, VitConfig, vit_weights
from jaxengine.device.weights.rules import Ignore, Rule, transpose

IGNORED: Mapping[str, Ignored] = {
    "attention_dropout": Ignored("only used in training"),
    "initializer_range": Ignored("only used in training"),
    "vision_use_head": Ignored("of what stands for a whole picture", allowed=(False,)),
}


def siglip_weights(prefix: str) -> tuple[Rule | Ignore, ...]:
    """The table of what both have."""
    return (
        *(
            Rule(f"patches.project.{kind}", f"{prefix}embeddings.patch_embedding.{kind}", transform)
            for kind, transform in (("weight", flat_filters), ("bias", None))
        ),
        Rule("patches.positions", f"{prefix}embeddings.position_embedding.weight"),
        *vit_weights(prefix, **SIGLIP_NAMES),  # type: ignore[arg-type]
        *(
            Rule(f"final.{name}", f"{prefix}post_layernorm.{kind}")
            for name, kind in (("scale", "weight"), ("bias", "bias"))
        ),
    )


class Gemma3Tower(VisionTransformer):
    """A `Tower`: a picture of 64 by 64 patches is 256 embeddings, each the mean of 4 by 4, normalised and projected."""

    WEIGHTS: ClassVar[Sequence[Rule | Ignore]] = (
        *siglip_weights("[model.]vision_tower.[vision_model.]"),
        Rule("norm_after.scale", f"{PROJECTOR}.mm_soft_emb_norm.weight"),
        Rule("projector.weight", f"{PROJECTOR}.mm_input_projection_weight", transpose),
    )
    IGNORED: ClassVar[Mapping[str, Ignored]] = IGNORED

    def __init__(self, config: VitConfig, context: ModelContext) -> None:
        super().__init__(config, context)
        self.norm_after = RMSNorm(config.width, epsilon=config.epsilon, offset=1.0, context=context)
        self.projector = Linear(config.width, config.out_size, axes=("embed", "mlp"), bias=False, context=context)

    @classmethod
    def read_config(cls, reader: ConfigReader, *, out_size: int, tokens: int) -> VitConfig:
        """Of `vision_config`; `tokens` embeddings are made of a picture (`mm_tokens_per_image`)."""
        config = read_siglip(reader, out_size=out_size, merge=1)
        return VitConfig(**{**config, "merge": config["side"] // round(tokens**0.5)})

    def embeddings(self, x: jax.Array, tapped: Sequence[jax.Array], step: TowerStep) -> jax.Array:
        x = self.features(x)
        means = jnp.take(x, step.taken, axis=0, mode="clip").astype(jnp.float32).mean(axis=1)
        return self.projector(self.norm_after(means.astype(x.dtype)), None)


class SmolVlmTower(VisionTransformer):
    """A `Tower`: patches of a block side by side, projected (arXiv 2504.05299)."""

    WEIGHTS: ClassVar[Sequence[Rule | Ignore]] = (
        *siglip_weights("[model.]vision_model."),
        Rule("projector.weight", "[model.]connector.modality_projection.proj.weight"),
    )
    IGNORED: ClassVar[Mapping[str, Ignored]] = IGNORED

    def __init__(self, config: VitConfig, context: ModelContext) -> None:
        super().__init__(config, context)
        wide = config.width * config.merge**2
        self.projector = Linear(wide, config.out_size, axes=("embed", "mlp"), bias=False, context=context)

    @classmethod
    def read_config(cls, reader: ConfigReader, *, out_size: int, merge: int) -> VitConfig:
        """Of `vision_config`; `merge` by `merge` patches become an embedding (`scale_factor`)."""
        return VitConfig(**read_siglip(reader, out_size=out_size, merge=merge), fractional=True)

    def embeddings(self, x: jax.Array, tapped: Sequence[jax.Array], step: TowerStep) -> jax.Array:
        return self.projector(gathered(self.features(x), step), None)


def read_siglip(reader: ConfigReader, *, out_size: int, merge: int) -> dict[str, Any]:
    """The fields that both read alike."""
    patch = reader.optional_size("patch_size", 16)
    return {
        "width": reader.optional_size("hidden_size", 768),
        "num_layers": reader.optional_size("num_hidden_layers", 12),
        "num_heads": reader.optional_size("num_attention_heads", 12),
        "mlp_size": reader.optional_size("intermediate_size", 3072),
        "patch_values": reader.optional_size("num_channels", 3) * patch**2,
        "merge": merge,
        "out_size": out_size,
        "side": reader.optional_size("image_size", 224) // patch,
        "epsilon": reader.optional("layer_norm_eps", 1e-6, float),
        "activation": reader.choice("hidden_act", "gelu_pytorch_tanh", ACTIVATIONS),
    }
