"""Vision transformers with a table of positions: CLIP's, SigLIP's, InternVL's and Idefics3's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxengine.device.layers.block import Block
from jaxengine.device.layers.context import ModelContext
from jaxengine.device.layers.mlp import MLP
from jaxengine.device.layers.norm import LayerNorm, RMSNorm
from jaxengine.device.layers.row_attention import RowAttention
from jaxengine.device.layers.self_attention import AttentionShape
from jaxengine.device.layers.step import Shared
from jaxengine.device.models.towers.places import Int32s, ItemGrid, Places, in_blocks, starts
from jaxengine.device.models.towers.step import TowerStep
from jaxengine.device.models.towers.tower import PatchEmbedding, Tower, TowerConfig, axial_angles
from jaxengine.device.weights.rules import Ignore, Rule


@dataclass(frozen=True, kw_only=True)
class VitConfig(TowerConfig):
    """The table of positions is for `side` by `side` patches. A place before them may stand for the whole; it has the row
    `whole_row` of the table, the first or the last.

    `projector_activation` is of the layers behind the tower. With `fractional` a picture of any size takes the rows of the table
    that lie at the same shares of it. There are `num_layers`, as many as are read; with `final_norm` a norm follows.
    `norm_inputs` is one before the first, `qk_norm` one of all channels of queries and keys, `scales` factors of each part of a
    layer. With `theta` queries and keys turn by column and row as well.
    """

    side: int
    epsilon: float
    activation: str
    whole_row: int | None = None
    theta: float | None = None
    fractional: bool = False
    patch_bias: bool = True
    norm_inputs: bool = False
    final_norm: bool = True
    qkv_bias: bool = True
    qk_norm: bool = False
    root_mean_square: bool = False
    scales: bool = False
    projector_activation: str = "gelu"

    @property
    def extra_places(self) -> int:
        """That which stands for the whole."""
        return int(self.whole_row is not None)


class Scaled(nnx.Module):
    """What a part of a layer gives, each channel times a factor of its own (LayerScale, arXiv 2103.17239)."""

    def __init__(self, part: nnx.Module, width: int, *, context: ModelContext) -> None:
        self.part = part
        self.factors = context.parameter((width,), ("embed",))

    @property
    def keeps(self) -> tuple[()]:
        """Nothing."""
        return ()

    def __call__(self, x: jax.Array, *arguments: Any) -> Any:
        """Of a mixer, with the cache, or of a feed-forward."""
        y = self.part(x, *arguments)  # type: ignore[operator]
        if isinstance(y, tuple):
            return y[0] * self.factors[...].astype(y[0].dtype), y[1]
        return y * self.factors[...].astype(y.dtype)


class VisionTransformer(Tower):
    """A `Tower` but for what makes embeddings of the last layer's stream."""

    config: VitConfig

    def __init__(self, config: VitConfig, context: ModelContext) -> None:
        self.config, self.context = config, context
        self.patches = PatchEmbedding(
            config.patch_values,
            config.width,
            bias=config.patch_bias,
            num_positions=config.side**2 + (config.whole_row is not None),
            context=context,
        )
        self.whole = None if config.whole_row is None else context.parameter((config.width,), ("embed",))
        self.input_norm = self.norm() if config.norm_inputs else None
        self.layers = nnx.List([self.block() for _ in range(config.num_layers)])
        self.final = self.norm() if config.final_norm else None

    def norm(self) -> LayerNorm | RMSNorm:
        """A norm of the stream."""
        config = self.config
        if config.root_mean_square:
            return RMSNorm(config.width, epsilon=config.epsilon, context=self.context)
        return LayerNorm(config.width, epsilon=config.epsilon, affine=True, context=self.context)

    def block(self) -> Block:
        """A layer."""
        config = self.config
        shape = AttentionShape(
            width=config.width,
            num_heads=config.num_heads,
            num_kv_heads=config.num_heads,
            head_dim=config.head_dim,
            scale=config.head_dim**-0.5,
            qkv_bias=config.qkv_bias,
            output_bias=True,
            norm_epsilon=1e-6 if config.qk_norm else None,
            norm_all=config.qk_norm,
            rope=None if config.theta is None else 0,
        )
        attention: Any = RowAttention(shape, context=self.context)
        mlp: Any = MLP(config.width, config.mlp_size, activation=config.activation, bias=True, context=self.context)
        if config.scales:
            attention, mlp = (Scaled(of, config.width, context=self.context) for of in (attention, mlp))
        return Block(attention, mlp, norm=self.norm)

    @staticmethod
    def places(config: VitConfig, grids: Sequence[ItemGrid]) -> Places:
        """As many embeddings as blocks of `merge` by `merge` patches; the place that stands for the whole is none of them."""
        row = config.whole_row
        first = int(row is not None)
        positions, table, order, taken, rows = [], [], [], [], []
        patches = places = 0
        for grid in grids:
            of_frame = in_blocks(grid, 1)
            numbers = np.arange(len(of_frame), dtype=np.int32).reshape(grid.height, grid.width)
            shape = (grid.height // config.merge, config.merge, grid.width // config.merge, config.merge)
            blocks = numbers.reshape(shape).swapaxes(1, 2).reshape(-1, config.merge**2)
            looked_up = table_rows(of_frame, grid, config.side, fractional=config.fractional)
            looked_up += row == 0
            for _ in range(grid.frames):
                if row is not None:
                    positions.append(np.full((1, 2), -1, np.int32))
                    table.append(np.array([row], np.int32))
                    order.append(np.array([-1], np.int32))
                positions.append(of_frame)
                table.append(looked_up)
                order.append(np.arange(len(of_frame), dtype=np.int32) + patches)
                taken.append(blocks + places + first)
                rows.append(len(of_frame) + first)
                patches += len(of_frame)
                places += rows[-1]
        offsets = starts(rows)
        return Places(
            offsets=offsets,
            windows=offsets,
            positions=np.concatenate(positions),
            table=np.concatenate(table)[:, None],
            shares=np.ones((places, 1), np.float32),
            taken=np.concatenate(taken),
            order=np.concatenate(order),
        )

    def embed_patches(self, patches: jax.Array, step: TowerStep) -> tuple[jax.Array, Shared]:
        if self.whole is None:
            x = self.patches(patches, step)
        else:
            dtype = self.context.activation_dtype
            x = self.patches.project(patches.astype(dtype), None)
            x = jnp.where(step.positions[:, :1] < 0, self.whole[...].astype(dtype), x) + self.patches.of_places(step)
        x = x if self.input_norm is None else self.input_norm(x)
        if self.config.theta is None:
            return x, Shared()
        # The first half of a head's pairs turns by the column, counted from 1, so what stands for the whole does not turn.
        by_column = axial_angles(step.positions[:, ::-1] + 1, self.config.head_dim, theta=self.config.theta)
        return x, Shared((by_column,))

    def features(self, x: jax.Array) -> jax.Array:
        """What is read behind the last layer."""
        return x if self.final is None else self.final(x)


def table_rows(positions: Int32s, grid: ItemGrid, side: int, *, fractional: bool) -> Int32s:
    """The row of a table of `side` by `side` of each patch."""
    if not fractional:
        return (positions[:, 0] * side + positions[:, 1]).astype(np.int32)
    bounds = np.arange(1 / side, 1.0, 1 / side).astype(np.float32)
    found = []
    for axis, size in enumerate((grid.height, grid.width)):
        shares = np.minimum(positions[:, axis].astype(np.float32) * np.float32(1.0 / size), np.float32(1.0 - 1e-6))
        found.append(np.searchsorted(bounds, shares, side="right"))
    return (found[0] * side + found[1]).astype(np.int32)


def vit_weights(
    prefix: str,
    *,
    layers: str,
    attention: str,
    names: Sequence[str],
    norms: Sequence[str],
    mlp: Sequence[str],
    bias: Callable[[str], Sequence[str]] = lambda name: ("weight", "bias"),
) -> tuple[Rule | Ignore, ...]:
    """The table of the layers: `names` are those of q, k, v and o under `attention`, `mlp` of both products."""
    at = f"{prefix}{layers}.*"
    return (
        *(
            Rule(f"layers.*.attention.{ours}.{kind}", f"{at}.{attention}.{theirs}.{kind}")
            for ours, theirs in zip("qkvo", names, strict=True)
            for kind in bias(ours)
        ),
        *(
            Rule(f"layers.*.{ours}.{name}", f"{at}.{theirs}.{kind}")
            for ours, theirs in zip(("attention_norm", "mlp_norm"), norms, strict=True)
            for name, kind in (("scale", "weight"), ("bias", "bias"))
        ),
        *(
            Rule(f"layers.*.mlp.{ours}.{kind}", f"{at}.{theirs}.{kind}")
            for ours, theirs in zip(("up", "down"), mlp, strict=True)
            for kind in ("weight", "bias")
        ),
    )
