"""The tower of InternVL 3: patches of a block side by side, a norm and two layers (arXiv 2504.10479)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import jax

from jaxengine.device.layers.activation import ACTIVATIONS
from jaxengine.device.layers.context import ModelContext
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.towers.clip import PROJECTOR, TWO_LAYERS
from jaxengine.device.models.towers.projectors import TwoLayers
from jaxengine.device.models.towers.step import TowerStep
from jaxengine.device.models.towers.tower import flat_filters, gathered
from jaxengine.device.models.towers.vit import VisionTransformer, VitConfig, vit_weights
from jaxengine.device.weights.rules import Ignore, Rule, flat

TOWER = "[model.]vision_tower."
LAYER = f"{TOWER}encoder.layer.*"


def without_scales(rows: Sequence[Rule | Ignore]) -> tuple[Rule | Ignore, ...]:
    """The table of layers whose parts lie inside of `Scaled`."""
    return tuple(
        replace(row, target=row.target.replace(".attention.", ".attention.part.").replace(".mlp.", ".mlp.part."))
        if isinstance(row, Rule)
        else row
        for row in rows
    )


class InternVlTower(VisionTransformer):
    """A `Tower`."""

    WEIGHTS: ClassVar[Sequence[Rule | Ignore]] = (
        Rule("whole", f"{TOWER}embeddings.cls_token", flat),
        Rule("patches.project.weight", f"{TOWER}embeddings.patch_embeddings.projection.weight", flat_filters),
        Rule("patches.project.bias", f"{TOWER}embeddings.patch_embeddings.projection.bias"),
        Rule("patches.positions", f"{TOWER}embeddings.position_embeddings", flat),
        *without_scales(
            vit_weights(
                TOWER,
                layers="encoder.layer",
                attention="attention",
                names=("q_proj", "k_proj", "v_proj", "projection_layer"),
                norms=("layernorm_before", "layernorm_after"),
                mlp=("mlp.fc1", "mlp.fc2"),
            )
        ),
        *(
            Rule(f"layers.*.attention.part.{name}.scale", f"{LAYER}.attention.{name}.weight")
            for name in ("q_norm", "k_norm")
        ),
        Rule("layers.*.attention.factors", f"{LAYER}.lambda_1"),
        Rule("layers.*.mlp.factors", f"{LAYER}.lambda_2"),
        Rule("final.scale", f"{TOWER}layernorm.weight"),
        Rule("final.bias", f"{TOWER}layernorm.bias"),
        *(
            Rule(f"projector.norm.{name}", f"{PROJECTOR}.layer_norm.{kind}")
            for name, kind in (("scale", "weight"), ("bias", "bias"))
        ),
        *TWO_LAYERS,
    )
    IGNORED: ClassVar[Mapping[str, Ignored]] = {
        **dict.fromkeys(
            (
                *("attention_dropout", "hidden_dropout_prob", "projection_dropout", "initializer_range"),
                *("layer_scale_init_value", "use_mask_token"),
            ),
            Ignored("only used in training"),
        ),
        "use_absolute_position_embeddings": Ignored("a table of positions", allowed=(True,)),
    }

    def __init__(self, config: VitConfig, context: ModelContext) -> None:
        super().__init__(config, context)
        wide = config.width * config.merge**2
        activation = config.projector_activation
        self.projector = TwoLayers(wide, config.out_size, activation=activation, norm_epsilon=1e-5, context=context)

    @classmethod
    def read_config(
        cls, reader: ConfigReader, *, out_size: int, merge: int, projector_activation: str = "gelu"
    ) -> VitConfig:
        """Of `vision_config`; `merge` by `merge` patches become an embedding (1 / `downsample_ratio`)."""
        [size], [patch] = (
            {value} if isinstance(value, int) else set(value)
            for value in (reader.raw("image_size", [448, 448]), reader.raw("patch_size", [14, 14]))
        )
        return VitConfig(
            width=reader.optional_size("hidden_size", 1024),
            num_layers=reader.optional_size("num_hidden_layers", 24),
            num_heads=reader.optional_size("num_attention_heads", 16),
            mlp_size=reader.optional_size("intermediate_size", 4096),
            patch_values=reader.optional_size("num_channels", 3) * patch**2,
            merge=merge,
            out_size=out_size,
            side=size // patch,
            epsilon=reader.optional("layer_norm_eps", 1e-6, float),
            activation=reader.choice("hidden_act", "gelu", ACTIVATIONS),
            whole_row=0,
            final_norm=not reader.optional("use_mean_pooling", True, bool),
            qkv_bias=reader.optional("attention_bias", False, bool),
            qk_norm=reader.optional("use_qk_norm", False, bool),
            root_mean_square=reader.choice("norm_type", "layer_norm", ("layer_norm", "rms_norm")) == "rms_norm",
            scales=True,
            projector_activation=projector_activation,
        )

    def embeddings(self, x: jax.Array, tapped: Sequence[jax.Array], step: TowerStep) -> jax.Array:
        return self.projector(gathered(self.features(x), step))
