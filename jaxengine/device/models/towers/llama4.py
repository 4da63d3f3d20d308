"""The tower of Llama 4: blocks of patches side by side, through two layers and a projection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import jax

from jaxengine.device.layers.activation import ACTIVATIONS
from jaxengine.device.layers.context import ModelContext
from jaxengine.device.layers.linear import Linear
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.towers.step import TowerStep
from jaxengine.device.models.towers.tower import gathered
from jaxengine.device.models.towers.vit import VisionTransformer, VitConfig, vit_weights
from jaxengine.device.weights.rules import Ignore, Rule

TOWER = "[model.]vision_model."
NAMES = ("q_proj", "k_proj", "v_proj", "o_proj")
NORMS = ("input_layernorm", "post_attention_layernorm")


@dataclass(frozen=True, kw_only=True)
class Llama4TowerConfig(VitConfig):
    """`hidden` and `wide` are the sizes behind both layers that follow the tower."""

    hidden: int = 4096
    wide: int = 4096


def beside(tensor: Any, config: Any, shape: tuple[int, ...]) -> Any:
    """Channels of a head that turn with the one beside them, in the order of those that turn with the one half a head away."""
    heads = tensor.reshape(config.num_heads, config.head_dim // 2, 2, *tensor.shape[1:])
    return heads.swapaxes(1, 2).reshape(tensor.shape)


class Llama4Tower(VisionTransformer):
    """A `Tower`."""

    WEIGHTS: ClassVar[Sequence[Rule | Ignore]] = (
        Rule("whole", f"{TOWER}class_embedding"),
        Rule("patches.project.weight", f"{TOWER}patch_embedding.linear.weight"),
        Rule("patches.positions", f"{TOWER}positional_embedding_vlm"),
        *(
            Rule(row.target, row.source, beside)
            if ".attention.q." in row.target or ".attention.k." in row.target
            else row
            for row in vit_weights(
                TOWER,
                layers="model.layers",
                attention="self_attn",
                names=NAMES,
                norms=NORMS,
                mlp=("mlp.fc1", "mlp.fc2"),
            )
            if isinstance(row, Rule)
        ),
        *(
            Rule(f"{ours}.{name}", f"{TOWER}{theirs}.{kind}")
            for ours, theirs in (("input_norm", "layernorm_pre"), ("final", "layernorm_post"))
            for name, kind in (("scale", "weight"), ("bias", "bias"))
        ),
        Rule("up.weight", f"{TOWER}vision_adapter.mlp.fc1.weight"),
        Rule("down.weight", f"{TOWER}vision_adapter.mlp.fc2.weight"),
        Rule("projector.weight", "[model.]multi_modal_projector.linear_1.weight"),
    )
    IGNORED: ClassVar[Mapping[str, Ignored]] = {
        **dict.fromkeys(
            ("attention_dropout", "projector_dropout", "initializer_range", "multi_modal_projector_bias"),
            Ignored("only used in training, or of no effect in transformers"),
        ),
        **dict.fromkeys(
            ("vision_feature_layer", "vision_feature_select_strategy"),
            Ignored("what is read is the last layer's", allowed=(-1, "default")),
        ),
        "norm_eps": Ignored("transformers' norms have 1e-5 whatever it says", allowed=(1e-5,)),
    }

    config: Llama4TowerConfig

    def __init__(self, config: Llama4TowerConfig, context: ModelContext) -> None:
        super().__init__(config, context)
        inner, hidden, wide = config.width * config.merge**2, config.hidden, config.wide
        self.up = Linear(inner, hidden, axes=("mlp", "embed"), bias=False, context=context)
        self.down = Linear(hidden, wide, axes=("embed", "mlp"), bias=False, context=context)
        self.projector = Linear(wide, config.out_size, axes=("mlp", "embed"), bias=False, context=context)

    @classmethod
    def read_config(cls, reader: ConfigReader, *, out_size: int) -> Llama4TowerConfig:
        """Of `vision_config`."""
        patch = reader.optional_size("patch_size", 14)
        side = reader.optional_size("image_size", 448) // patch
        ropes = reader.raw("rope_parameters") or {}
        reader.optional_size("vision_output_dim", 4096)  # as `projector_output_dim`, by another name
        return Llama4TowerConfig(
            hidden=reader.optional_size("projector_input_dim", 4096),
            wide=reader.optional_size("projector_output_dim", 4096),
            width=reader.optional_size("hidden_size", 768),
            num_layers=reader.optional_size("num_hidden_layers", 34),
            num_heads=reader.optional_size("num_attention_heads", 16),
            mlp_size=reader.optional_size("intermediate_size", 5632),
            patch_values=reader.optional_size("num_channels", 3) * patch**2,
            merge=round(1 / reader.optional("pixel_shuffle_ratio", 0.5, float)),
            out_size=out_size,
            side=side,
            epsilon=1e-5,
            activation=reader.choice("hidden_act", "gelu", ("gelu",)),
            whole_row=side**2,
            theta=reader.optional("rope_theta", float(ropes.get("rope_theta", 10000.0)), float),
            patch_bias=False,
            norm_inputs=True,
        )

    def embeddings(self, x: jax.Array, tapped: Sequence[jax.Array], step: TowerStep) -> jax.Array:
        gelu = ACTIVATIONS["gelu"]
        blocks = gathered(self.features(x), step)
        return self.projector(gelu(self.down(gelu(self.up(blocks, None)), None)), None)
