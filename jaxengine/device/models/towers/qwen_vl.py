"""The towers of Qwen2.5-VL, and of Qwen3-VL and Qwen3.5."""

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
from jaxengine.device.layers.mlp import MLP, GatedMLP
from jaxengine.device.layers.norm import LayerNorm, RMSNorm
from jaxengine.device.layers.row_attention import RowAttention
from jaxengine.device.layers.self_attention import AttentionShape
from jaxengine.device.layers.step import Shared
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.towers.places import ItemGrid, Places, by_window, in_blocks, interpolated, starts
from jaxengine.device.models.towers.step import TowerStep
from jaxengine.device.models.towers.tower import (
    PatchEmbedding,
    Tower,
    TowerConfig,
    axial_angles,
    flat_filters,
    gathered,
)
from jaxengine.device.weights.rules import Ignore, Rule, part
from jaxengine.errors import ConfigError

EPSILON = 1e-6
ATTENTION = "[model.]visual.blocks.*.attn"
SHARED_WEIGHTS: tuple[Rule | Ignore, ...] = (
    Rule("patches.project.weight", "[model.]visual.patch_embed.proj.weight", flat_filters),
    *(
        Rule(f"layers.*.attention.{name}.{kind}", f"{ATTENTION}.qkv.{kind}", part(at, 3))
        for at, name in enumerate("qkv")
        for kind in ("weight", "bias")
    ),
    *(Rule(f"layers.*.attention.o.{kind}", f"{ATTENTION}.proj.{kind}") for kind in ("weight", "bias")),
)
TRAINING = {"initializer_range": Ignored("only used in training")}


@dataclass(frozen=True, kw_only=True)
class QwenTowerConfig(TowerConfig):
    """Of the layers `whole` patches see their whole frame, in the others their window of `window` by `window` blocks.

    A table of positions has `side` by `side` rows, 0 being none.
    """

    activation: str
    whole: tuple[int, ...] = ()
    window: int = 0
    side: int = 0
    theta: float = 10_000.0

    def num_windows(self, patches: int, rows: int) -> int:
        """A row of `h` by `w` blocks has no more than `h * w / window + 1` windows."""
        return rows + (patches // self.block // self.window if self.window else 0)


class QwenTower(Tower):
    """Patches of two frames each; rotary positions in two axes; four patches beside each other become an embedding."""

    config: QwenTowerConfig

    def __init__(self, config: QwenTowerConfig, context: ModelContext) -> None:
        self.config, self.context = config, context
        self.patches = PatchEmbedding(
            config.patch_values, config.width, bias=config.side > 0, num_positions=config.side**2, context=context
        )

    @staticmethod
    def places(config: QwenTowerConfig, grids: Sequence[ItemGrid]) -> Places:
        block = config.merge**2
        positions, table, shares, order, taken, frames, windows = [], [], [], [], [], [], []
        before = 0
        for grid in grids:
            of_frame = in_blocks(grid, config.merge)
            each = len(of_frame)
            blocks, counts = np.arange(each // block, dtype=np.int32), [each // block]
            if config.window:
                blocks, counts = by_window(grid, config.merge, config.window)
            # Windows first: places are in their order, and embeddings are taken in that of the picture.
            moved = (blocks[:, None] * block + np.arange(block, dtype=np.int32)).ravel()
            back = np.argsort(blocks).astype(np.int32)[:, None] * block + np.arange(block, dtype=np.int32)
            rows, parts = interpolated(of_frame, grid, config.side) if config.side else (of_frame[:, :1], None)
            for frame in range(grid.frames):
                first = before + frame * each
                positions.append(of_frame[moved])
                order.append(moved + first)
                taken.append(back + first)
                table.append(rows[moved])
                shares.append(np.ones((each, 1), np.float32) if parts is None else parts[moved])
                frames.append(each)
                windows += [count * block for count in counts]
            before += grid.patches
        return Places(
            offsets=starts(frames),
            windows=starts(windows),
            positions=np.concatenate(positions),
            table=np.concatenate(table),
            shares=np.concatenate(shares),
            taken=np.concatenate(taken),
            order=np.concatenate(order),
        )

    def attention(self) -> RowAttention:
        """Of every layer."""
        config = self.config
        shape = AttentionShape(
            width=config.width,
            num_heads=config.num_heads,
            num_kv_heads=config.num_heads,
            head_dim=config.head_dim,
            scale=config.head_dim**-0.5,
            qkv_bias=True,
            output_bias=True,
            rope=0,
        )
        return RowAttention(shape, context=self.context)

    def embed_patches(self, patches: jax.Array, step: TowerStep) -> tuple[jax.Array, Shared]:
        return self.patches(patches, step), self._shared(step)

    def _shared(self, step: TowerStep) -> Shared:
        config = self.config
        return Shared((axial_angles(step.positions, config.head_dim, theta=config.theta),))

    def sees_windows(self, layer: int) -> bool:
        return self.config.window > 0 and layer not in self.config.whole


class Merger(nnx.Module):
    """A norm, before patches are put side by side or behind it (`late`), and a network of one hidden layer."""

    def __init__(self, config: QwenTowerConfig, *, late: bool, norm: type[LayerNorm | RMSNorm], context: ModelContext):
        wide = config.width * config.merge**2
        size = wide if late else config.width
        self.late = late
        self.norm = (
            LayerNorm(size, epsilon=EPSILON, affine=True, context=context)
            if norm is LayerNorm
            else RMSNorm(size, epsilon=EPSILON, context=context)
        )
        self.up = Linear(wide, wide, axes=("mlp", "embed"), bias=True, context=context)
        self.down = Linear(wide, config.out_size, axes=("embed", "mlp"), bias=True, context=context)

    def __call__(self, x: jax.Array, step: TowerStep) -> jax.Array:
        """`x [N, W]` -> `[M, E]`."""
        x = self.norm(gathered(x, step)) if self.late else gathered(self.norm(x), step)
        return self.down(ACTIVATIONS["gelu"](self.up(x, None)), None)


class Qwen2_5VisionTower(QwenTower):  # noqa: N801 - the model's name
    """Gated feed-forwards, norms without means, windows in most layers (arXiv 2502.13923)."""

    WEIGHTS: ClassVar[Sequence[Rule | Ignore]] = (
        *SHARED_WEIGHTS,
        Rule("layers.*.attention_norm.scale", "[model.]visual.blocks.*.norm1.weight"),
        Rule("layers.*.mlp_norm.scale", "[model.]visual.blocks.*.norm2.weight"),
        *(
            Rule(f"layers.*.mlp.{name}.{kind}", f"[model.]visual.blocks.*.mlp.{name}_proj.{kind}")
            for name in ("gate", "up", "down")
            for kind in ("weight", "bias")
        ),
        Rule("merger.norm.scale", "[model.]visual.merger.ln_q.weight"),
        *(
            Rule(f"merger.{ours}.{kind}", f"[model.]visual.merger.mlp.{theirs}.{kind}")
            for ours, theirs in (("up", 0), ("down", 2))
            for kind in ("weight", "bias")
        ),
    )
    IGNORED: ClassVar[Mapping[str, Ignored]] = {
        **TRAINING,
        "tokens_per_second": Ignored("read with the text's positions"),
    }

    def __init__(self, config: QwenTowerConfig, context: ModelContext) -> None:
        super().__init__(config, context)

        def norm() -> RMSNorm:
            return RMSNorm(config.width, epsilon=EPSILON, context=context)

        def mlp() -> GatedMLP:
            return GatedMLP(config.width, config.mlp_size, activation=config.activation, bias=True, context=context)

        self.layers = nnx.List([Block(self.attention(), mlp(), norm=norm) for _ in range(config.num_layers)])
        self.merger = Merger(config, late=False, norm=RMSNorm, context=context)

    @classmethod
    def read_config(cls, reader: ConfigReader) -> QwenTowerConfig:
        """Of `vision_config`."""
        merge = reader.optional_size("spatial_merge_size", 2)
        patch = reader.optional_size("patch_size", 14)
        window = reader.optional_size("window_size", 112) // merge // patch
        whole = reader.raw("fullatt_block_indexes", [7, 15, 23, 31])
        return QwenTowerConfig(
            **_sizes(reader, merge=merge, patch=patch, activation="silu", depth=32, width=3584, heads=16, mlp=3420),
            whole=tuple(whole),
            window=window,
        )

    def embeddings(self, x: jax.Array, tapped: Sequence[jax.Array], step: TowerStep) -> jax.Array:
        return self.merger(x, step)


class Qwen3VisionTower(QwenTower):
    """A table of positions, interpolated, beside rotary ones; the stream of early layers is read as well (arXiv 2511.21631)."""

    WEIGHTS: ClassVar[Sequence[Rule | Ignore]] = (
        *SHARED_WEIGHTS,
        Rule("patches.project.bias", "[model.]visual.patch_embed.proj.bias"),
        Rule("patches.positions", "[model.]visual.pos_embed.weight"),
        *(
            Rule(f"layers.*.{ours}.{name}", f"[model.]visual.blocks.*.{theirs}.{kind}")
            for ours, theirs in (("attention_norm", "norm1"), ("mlp_norm", "norm2"))
            for name, kind in (("scale", "weight"), ("bias", "bias"))
        ),
        *(
            Rule(f"layers.*.mlp.{ours}.{kind}", f"[model.]visual.blocks.*.mlp.{theirs}.{kind}")
            for ours, theirs in (("up", "linear_fc1"), ("down", "linear_fc2"))
            for kind in ("weight", "bias")
        ),
        *(
            Rule(f"{merger}.{ours}.{name}", f"[model.]visual.{source}.{theirs}.{kind}")
            for merger, source in (("merger", "merger"), ("mergers.*", "deepstack_merger_list.*"))
            for ours, theirs, names in (
                ("norm", "norm", (("scale", "weight"), ("bias", "bias"))),
                ("up", "linear_fc1", (("weight", "weight"), ("bias", "bias"))),
                ("down", "linear_fc2", (("weight", "weight"), ("bias", "bias"))),
            )
            for name, kind in names
        ),
    )
    IGNORED: ClassVar[Mapping[str, Ignored]] = TRAINING
    TAPS: ClassVar[tuple[int, ...]] = (8, 16, 24)
    """The early layers, where a file does not say them."""

    def __init__(self, config: QwenTowerConfig, context: ModelContext) -> None:
        super().__init__(config, context)

        def norm() -> LayerNorm:
            return LayerNorm(config.width, epsilon=EPSILON, affine=True, context=context)

        def mlp() -> MLP:
            return MLP(config.width, config.mlp_size, activation=config.activation, bias=True, context=context)

        self.layers = nnx.List([Block(self.attention(), mlp(), norm=norm) for _ in range(config.num_layers)])
        self.merger = Merger(config, late=False, norm=LayerNorm, context=context)
        self.mergers = nnx.List([Merger(config, late=True, norm=LayerNorm, context=context) for _ in config.taps])

    @classmethod
    def read_config(cls, reader: ConfigReader) -> QwenTowerConfig:
        """Of `vision_config`."""
        merge = reader.optional_size("spatial_merge_size", 2)
        patch = reader.optional_size("patch_size", 16)
        positions = reader.optional_size("num_position_embeddings", 2304)
        side = round(positions**0.5)
        if side**2 != positions:
            raise ConfigError(f"config.json: vision_config: num_position_embeddings={positions} is not a square")
        taps = reader.raw("deepstack_visual_indexes", list(cls.TAPS))
        return QwenTowerConfig(
            **_sizes(
                reader,
                merge=merge,
                patch=patch,
                activation="gelu_pytorch_tanh",
                depth=27,
                width=1152,
                heads=16,
                mlp=4304,
            ),
            side=side,
            taps=tuple(taps),
        )

    def embeddings(self, x: jax.Array, tapped: Sequence[jax.Array], step: TowerStep) -> jax.Array:
        parts = [self.merger(x, step)]
        parts += [merger(early, step) for merger, early in zip(self.mergers, tapped, strict=True)]
        return jnp.concatenate(parts, axis=-1)


class Qwen3_5VisionTower(Qwen3VisionTower):  # noqa: N801 - the model's name
    """The same, of which the end alone is read."""

    TAPS = ()

    @classmethod
    def read_config(cls, reader: ConfigReader) -> QwenTowerConfig:
        config = super().read_config(reader)
        if config.taps:
            raise ConfigError(
                f"config.json: vision_config: deepstack_visual_indexes={list(config.taps)} is not built for Qwen3.5"
            )
        return config


def _sizes(
    reader: ConfigReader, *, merge: int, patch: int, activation: str, depth: int, width: int, heads: int, mlp: int
) -> dict[str, Any]:
    channels = reader.optional_size("in_channels", 3)
    frames = reader.optional_size("temporal_patch_size", 2)
    ropes = reader.raw("rope_parameters") or {}
    return {
        "width": reader.optional_size("hidden_size", width),
        "num_layers": reader.optional_size("depth", depth),
        "num_heads": reader.optional_size("num_heads", heads),
        "mlp_size": reader.optional_size("intermediate_size", mlp),
        "patch_values": channels * frames * patch**2,
        "merge": merge,
        "theta": reader.optional("rope_theta", float(ropes.get("rope_theta", 10_000.0)), float),
        "out_size": reader.optional_size("out_hidden_size", 3584),
        "activation": reader.choice("hidden_act", activation, ACTIVATIONS),
    }
