"""The tower of LLaVA-1.5: CLIP's, read before its last layer, and a projector of two layers (arXiv 2310.03744)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import jax

from jaxengine.device.layers.activation import ACTIVATIONS
from jaxengine.device.layers.context import ModelContext
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.towers.projectors import TwoLayers
from jaxengine.device.models.towers.step import TowerStep
from jaxengine.device.models.towers.tower import flat_filters, gathered
from jaxengine.device.models.towers.vit import VisionTransformer, VitConfig, vit_weights
from jaxengine.device.weights.rules import Ignore, Rule
from jaxengine.errors import ConfigError

CLIP = "[model.]vision_tower.[vision_model.]"
PROJECTOR = "[model.]multi_modal_projector"
SIGLIP_NAMES = {
    "layers": "encoder.layers",
    "attention": "self_attn",
    "names": ("q_proj", "k_proj", "v_proj", "out_proj"),
    "norms": ("layer_norm1", "layer_norm2"),
    "mlp": ("mlp.fc1", "mlp.fc2"),
}
TWO_LAYERS = tuple(
    Rule(f"projector.{ours}.{kind}", f"{PROJECTOR}.{theirs}.{kind}")
    for ours, theirs in (("up", "linear_1"), ("down", "linear_2"))
    for kind in ("weight", "bias")
)


class ClipTower(VisionTransformer):
    """A `Tower`."""

    WEIGHTS: ClassVar[Sequence[Rule | Ignore]] = (
        Rule("whole", f"{CLIP}embeddings.class_embedding"),
        Rule("patches.project.weight", f"{CLIP}embeddings.patch_embedding.weight", flat_filters),
        Rule("patches.positions", f"{CLIP}embeddings.position_embedding.weight"),
        *(
            Rule(f"input_norm.{name}", f"{CLIP}pre_layrnorm.{kind}")
            for name, kind in (("scale", "weight"), ("bias", "bias"))
        ),
        *vit_weights(CLIP, **SIGLIP_NAMES),  # type: ignore[arg-type]
        Ignore(f"{CLIP}encoder.layers.*.**", "nothing reads them", layers="unread_tower_layers"),
        Ignore(f"{CLIP}embeddings.position_ids", "they are counted"),
        Ignore(f"{CLIP}post_layernorm.**", "the stream is read before it"),
        *TWO_LAYERS,
    )
    IGNORED: ClassVar[Mapping[str, Ignored]] = {
        "projection_dim": Ignored("of what is compared with texts"),
        "attention_dropout": Ignored("only used in training"),
        "initializer_factor": Ignored("only used in training"),
        "initializer_range": Ignored("only used in training"),
        "vocab_size": Ignored("of the texts that CLIP compares with"),
    }

    def __init__(self, config: VitConfig, context: ModelContext) -> None:
        super().__init__(config, context)
        self.projector = TwoLayers(
            config.width, config.out_size, activation=config.projector_activation, context=context
        )

    @classmethod
    def read_config(
        cls, reader: ConfigReader, *, out_size: int, layer: int, projector_activation: str = "gelu"
    ) -> VitConfig:
        """Of `vision_config`; `layer` is the number of the hidden states that are read (`vision_feature_layer`)."""
        depth = reader.optional_size("num_hidden_layers", 12)
        layers = layer if layer >= 0 else depth + 1 + layer
        if not 0 < layers <= depth:
            raise ConfigError(f"config.json: vision_feature_layer={layer} is none of the {depth} layers of the tower")
        patch = reader.optional_size("patch_size", 32)
        return VitConfig(
            width=reader.optional_size("hidden_size", 768),
            num_layers=layers,
            depth=depth,
            num_heads=reader.optional_size("num_attention_heads", 12),
            mlp_size=reader.optional_size("intermediate_size", 3072),
            patch_values=reader.optional_size("num_channels", 3) * patch**2,
            merge=1,
            out_size=out_size,
            side=reader.optional_size("image_size", 224) // patch,
            epsilon=reader.optional("layer_norm_eps", 1e-5, float),
            activation=reader.choice("hidden_act", "quick_gelu", ACTIVATIONS),
            whole_row=0,
            patch_bias=False,
            norm_inputs=True,
            final_norm=False,
            projector_activation=projector_activation,
        )

    def embeddings(self, x: jax.Array, tapped: Sequence[jax.Array], step: TowerStep) -> jax.Array:
        return self.projector(gathered(x, step))
