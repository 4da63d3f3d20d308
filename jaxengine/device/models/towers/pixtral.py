"""The tower of Pixtral and Mistral 3: pictures of any size, rotary positions in two axes (arXiv 2410.07073)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxengine.device.layers.activation import ACTIVATIONS
from jaxengine.device.layers.block import Block
from jaxengine.device.layers.context import ModelContext
from jaxengine.device.layers.linear import Linear
from jaxengine.device.layers.mlp import GatedMLP
from jaxengine.device.layers.norm import RMSNorm
from jaxengine.device.layers.row_attention import RowAttention
from jaxengine.device.layers.self_attention import AttentionShape
from jaxengine.device.layers.step import Angles, Shared
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.towers.clip import PROJECTOR, TWO_LAYERS
from jaxengine.device.models.towers.places import ItemGrid, Places, in_blocks, starts
from jaxengine.device.models.towers.projectors import TwoLayers
from jaxengine.device.models.towers.step import TowerStep
from jaxengine.device.models.towers.tower import PatchEmbedding, Tower, TowerConfig, flat_filters
from jaxengine.device.weights.rules import Ignore, Rule

TOWER = "[model.]vision_tower"
LAYER = f"{TOWER}.transformer.layers.*"
EPSILON = 1e-5


@dataclass(frozen=True, kw_only=True)
class PixtralConfig(TowerConfig):
    """`merges` says whether blocks of patches are put together before the projector, behind a norm (Mistral 3). The projector has
    `projector_bias` or not."""

    activation: str
    theta: float
    merges: bool
    merge_epsilon: float = EPSILON
    projector_activation: str = "gelu"
    projector_bias: bool = True


class PixtralTower(Tower):
    """A `Tower`."""

    WEIGHTS: ClassVar[Sequence[Rule | Ignore]] = (
        Rule("patches.project.weight", f"{TOWER}.patch_conv.weight", flat_filters),
        Rule("input_norm.scale", f"{TOWER}.ln_pre.weight"),
        *(Rule(f"layers.*.attention.{name}.weight", f"{LAYER}.attention.{name}_proj.weight") for name in "qkvo"),
        *(
            Rule(f"layers.*.mlp.{name}.weight", f"{LAYER}.feed_forward.{name}_proj.weight")
            for name in ("gate", "up", "down")
        ),
        Rule("layers.*.attention_norm.scale", f"{LAYER}.attention_norm.weight"),
        Rule("layers.*.mlp_norm.scale", f"{LAYER}.ffn_norm.weight"),
        Rule("merge_norm.scale", f"{PROJECTOR}.norm.weight"),
        Rule("merger.weight", f"{PROJECTOR}.patch_merger.merging_layer.weight"),
        *TWO_LAYERS,
    )
    IGNORED: ClassVar[Mapping[str, Ignored]] = {
        "attention_dropout": Ignored("only used in training"),
        "initializer_range": Ignored("only used in training"),
    }
    config: PixtralConfig

    def __init__(self, config: PixtralConfig, context: ModelContext) -> None:
        self.config, self.context = config, context
        self.patches = PatchEmbedding(config.patch_values, config.width, bias=False, context=context)

        def norm() -> RMSNorm:
            return RMSNorm(config.width, epsilon=EPSILON, context=context)

        def block() -> Block:
            shape = AttentionShape(
                width=config.width,
                num_heads=config.num_heads,
                num_kv_heads=config.num_heads,
                head_dim=config.head_dim,
                scale=config.head_dim**-0.5,
                rope=0,
            )
            mlp = GatedMLP(config.width, config.mlp_size, activation=config.activation, bias=False, context=context)
            return Block(RowAttention(shape, context=context), mlp, norm=norm)

        self.input_norm = norm()
        self.layers = nnx.List([block() for _ in range(config.num_layers)])
        self.merge_norm = (
            RMSNorm(config.width, epsilon=config.merge_epsilon, context=context) if config.merges else None
        )
        wide = config.width * config.merge**2
        merger = Linear(wide, config.width, axes=("embed", "mlp"), bias=False, context=context)
        self.merger = merger if config.merges else None
        self.projector = TwoLayers(
            config.width,
            config.out_size,
            activation=config.projector_activation,
            bias=config.projector_bias,
            context=context,
        )

    @classmethod
    def read_config(
        cls,
        reader: ConfigReader,
        *,
        out_size: int,
        merge: int | None,
        epsilon: float = EPSILON,
        projector_activation: str = "gelu",
        projector_bias: bool = True,
    ) -> PixtralConfig:
        """Of `vision_config`; `merge` is `spatial_merge_size` of Mistral 3, whose texts have norms of this `epsilon`."""
        patch = reader.optional_size("patch_size", 16)
        width, heads = reader.optional_size("hidden_size", 1024), reader.optional_size("num_attention_heads", 16)
        reader.nullable("head_dim", None, int)
        reader.raw("image_size")  # the processor's limit
        ropes = reader.raw("rope_parameters") or {}
        return PixtralConfig(
            width=width,
            num_layers=reader.optional_size("num_hidden_layers", 24),
            num_heads=heads,
            mlp_size=reader.optional_size("intermediate_size", 4096),
            patch_values=reader.optional_size("num_channels", 3) * patch**2,
            merge=merge or 1,
            out_size=out_size,
            activation=reader.choice("hidden_act", "gelu", ACTIVATIONS),
            theta=reader.optional("rope_theta", float(ropes.get("rope_theta", 10000.0)), float),
            merges=merge is not None,
            merge_epsilon=epsilon,
            projector_activation=projector_activation,
            projector_bias=projector_bias,
        )

    @staticmethod
    def places(config: PixtralConfig, grids: Sequence[ItemGrid]) -> Places:
        positions, taken, rows = [], [], []
        before = 0
        for grid in grids:
            numbers = np.arange(grid.height * grid.width, dtype=np.int32).reshape(grid.height, grid.width)
            shape = (grid.height // config.merge, config.merge, grid.width // config.merge, config.merge)
            blocks = numbers[: shape[0] * shape[1], : shape[2] * shape[3]].reshape(shape).swapaxes(1, 2)
            positions.append(in_blocks(grid, 1))
            taken.append(blocks.reshape(-1, config.merge**2) + before)
            rows.append(numbers.size)
            before += numbers.size
        offsets = starts(rows)
        return Places(
            offsets=offsets,
            windows=offsets,
            positions=np.concatenate(positions),
            table=np.zeros((before, 1), np.int32),
            shares=np.zeros((before, 1), np.float32),
            taken=np.concatenate(taken),
            order=np.arange(before, dtype=np.int32),
        )

    def embed_patches(self, patches: jax.Array, step: TowerStep) -> tuple[jax.Array, Shared]:
        return self.input_norm(self.patches(patches, step)), Shared((self.angles(step.positions),))

    def angles(self, positions: jax.Array) -> Angles:
        """Of a head's pairs the first half turns by the row, with every second frequency, the others by the column."""
        size = self.config.head_dim
        frequencies = 1.0 / self.config.theta ** (jnp.arange(0, size, 2, dtype=jnp.float32) / size)
        at = positions.astype(jnp.float32)
        angles = jnp.concatenate([at[:, :1] * frequencies[::2], at[:, 1:] * frequencies[1::2]], axis=-1)[:, None]
        return jnp.cos(angles), jnp.sin(angles)

    def embeddings(self, x: jax.Array, tapped: Sequence[jax.Array], step: TowerStep) -> jax.Array:
        if self.merge_norm is None or self.merger is None:
            return self.projector(jnp.take(x, step.taken[:, 0], axis=0, mode="clip"))
        # The merger's matrix has the places of a block behind each channel (torch's `unfold`).
        blocks = jnp.take(self.merge_norm(x), step.taken, axis=0, mode="clip").swapaxes(1, 2)
        return self.projector(self.merger(blocks.reshape(len(blocks), -1), None))
