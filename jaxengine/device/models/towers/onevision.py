"""The tower of LLaVA-OneVision: SigLIP's, read before its last norm; tiles become one picture again (arXiv 2408.03326)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from jaxengine.contract.media import Mosaic
from jaxengine.device.layers.context import ModelContext
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.towers.clip import TWO_LAYERS
from jaxengine.device.models.towers.places import Int32s, ItemGrid, Places
from jaxengine.device.models.towers.projectors import TwoLayers
from jaxengine.device.models.towers.siglip import IGNORED, read_siglip, siglip_weights
from jaxengine.device.models.towers.step import TowerStep
from jaxengine.device.models.towers.vit import VisionTransformer, VitConfig
from jaxengine.device.weights.rules import Ignore, Rule
from jaxengine.errors import ConfigError

SIGLIP = "[model.]vision_tower.[vision_model.]"
NEWLINE = -1
"""In place of a patch: what ends a row."""
TAPS = 4
"""Patches of which an embedding is made where the picture is made smaller."""


class OneVisionConfig(VitConfig):
    """Each row of a picture takes an embedding more."""

    def num_embeddings(self, patches: int, rows: int) -> int:
        return patches + rows * self.side


class OneVisionTower(VisionTransformer):
    """A `Tower`. Of a picture's tiles the first is all of it, the others lie row by row (`Mosaic`)."""

    WEIGHTS: ClassVar[Sequence[Rule | Ignore]] = (
        *(row for row in siglip_weights(SIGLIP) if isinstance(row, Ignore) or not row.target.startswith("final.")),
        Ignore(f"{SIGLIP}encoder.layers.*.**", "nothing reads them", layers="unread_tower_layers"),
        Ignore(f"{SIGLIP}post_layernorm.**", "the stream is read before it"),
        Ignore(f"{SIGLIP}head.**", "of what stands for a whole picture"),
        *TWO_LAYERS,
        Rule("newline", "[model.]image_newline"),
    )
    IGNORED: ClassVar[Mapping[str, Ignored]] = {**IGNORED, "vision_use_head": Ignored("the tower is read before it")}

    def __init__(self, config: VitConfig, context: ModelContext) -> None:
        super().__init__(config, context)
        self.projector = TwoLayers(
            config.width, config.out_size, activation=config.projector_activation, context=context
        )
        self.newline = context.parameter((config.out_size,), ("embed",))

    @classmethod
    def read_config(
        cls, reader: ConfigReader, *, out_size: int, layer: int, projector_activation: str
    ) -> OneVisionConfig:
        """Of `vision_config`; `layer` is the number of the hidden states that are read (`vision_feature_layer`)."""
        fields = read_siglip(reader, out_size=out_size, merge=1)
        depth = fields["num_layers"]
        layers = layer if layer >= 0 else depth + 1 + layer
        if not 0 < layers <= depth:
            raise ConfigError(f"config.json: vision_feature_layer={layer} is none of the {depth} layers of the tower")
        return OneVisionConfig(
            **{**fields, "num_layers": layers},
            depth=depth,
            final_norm=False,
            projector_activation=projector_activation,
        )

    @staticmethod
    def places(config: VitConfig, grids: Sequence[ItemGrid]) -> Places:
        found = VisionTransformer.places(config, grids)
        taken, weights, before = [], [], 0
        for grid in grids:
            whole = np.arange(grid.height * grid.width, dtype=np.int32) + before
            taken.append(np.tile(whole[:, None], TAPS))
            weights.append(np.eye(1, TAPS, dtype=np.float32).repeat(len(whole), axis=0))
            if grid.mosaic is not None:
                taps, shares = rows_of(grid.mosaic, grid)
                taken.append(np.where(taps == NEWLINE, NEWLINE, taps + before).astype(np.int32))
                weights.append(shares)
            before += grid.patches
        return replace(found, taken=np.concatenate(taken), weights=np.concatenate(weights))

    def embeddings(self, x: jax.Array, tapped: Sequence[jax.Array], step: TowerStep) -> jax.Array:
        assert step.weights is not None
        projected = self.projector(x)
        rows = jnp.take(projected, jnp.maximum(step.taken, 0), axis=0, mode="clip").astype(jnp.float32)
        mixed = (rows * step.weights[:, :, None]).sum(axis=1).astype(projected.dtype)
        return jnp.where(step.taken[:, :1] == NEWLINE, self.newline[...].astype(projected.dtype), mixed)


def rows_of(mosaic: Mosaic, grid: ItemGrid) -> tuple[Int32s, NDArray[np.float32]]:
    """Behind the whole: of each embedding `TAPS` patches of the item and their shares, row by row, each row with what ends it."""
    across = (grid.frames - 1) // mosaic.tiles
    full = mosaic.tiles * grid.height, across * grid.width
    taps, shares = [], []
    for size, of_full, out in zip(
        (mosaic.rows, mosaic.columns), full, (mosaic.out_rows, mosaic.out_columns), strict=True
    ):
        begins = (of_full - size) // 2
        # As torch interpolates: centres of what is made lie where they do in what there is.
        at = (np.arange(out, dtype=np.float32) + np.float32(0.5)) * np.float32(size / out) - np.float32(0.5)
        at = np.maximum(at, 0)
        first = at.astype(np.int32)
        far = (at - first).astype(np.float32)
        taps.append(np.minimum(np.stack([first, first + 1], axis=-1), size - 1) + begins)
        shares.append(np.stack([1 - far, far], axis=-1))
    rows, columns = taps[0][:, None, :, None], taps[1][None, :, None, :]
    tile = 1 + rows // grid.height * across + columns // grid.width
    patch = tile * grid.height * grid.width + rows % grid.height * grid.width + columns % grid.width
    count = mosaic.out_rows, mosaic.out_columns
    found = np.full((count[0], count[1] + 1, TAPS), NEWLINE, np.int32)
    found[:, :-1] = patch.reshape(*count, TAPS)
    parts = np.zeros(found.shape, np.float32)
    parts[:, :-1] = (shares[0][:, None, :, None] * shares[1][None, :, None, :]).reshape(*count, TAPS)
    return found.reshape(-1, TAPS), parts.reshape(-1, TAPS)
