"""The tower of Gemma 4: pictures of any size, learned and rotary positions of column and row, products within bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxengine.device.layers.activation import ACTIVATIONS
from jaxengine.device.layers.attention import HEADS, KV_HEADS
from jaxengine.device.layers.block import Block, Norms
from jaxengine.device.layers.cache import Cache
from jaxengine.device.layers.context import ModelContext
from jaxengine.device.layers.linear import Linear
from jaxengine.device.layers.norm import RMSNorm, by_root_mean_square
from jaxengine.device.layers.step import Shared
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.towers.places import ItemGrid, Places, in_blocks, starts
from jaxengine.device.models.towers.step import TowerStep
from jaxengine.device.models.towers.tower import PatchEmbedding, Tower, TowerConfig, axial_angles
from jaxengine.device.weights.rules import Ignore, Rule, flat
from jaxengine.errors import ConfigError
from pallas_kernels import rotate, row_attention

TOWER = "[model.]vision_tower"
LAYER = f"{TOWER}.encoder.layers.*"
BOUNDS = ("input_min", "input_max", "output_min", "output_max")


@dataclass(frozen=True, kw_only=True)
class Gemma4TowerConfig(TowerConfig):
    """`side` columns and as many rows have a position each. Products may be `bounded`, embeddings `standardised`."""

    head_size: int
    side: int
    epsilon: float
    activation: str
    theta: float
    bounded: bool
    standardised: bool

    @property
    def head_dim(self) -> int:
        return self.head_size


def by_halves(tensor: Any, config: Any, shape: tuple[int, ...]) -> Any:
    """Heads whose halves turn each in itself, in the order in which a channel turns with the one half a head away."""
    heads = tensor.reshape(-1, 2, 2, config.head_dim // 4, *tensor.shape[1:])
    return heads.swapaxes(1, 2).reshape(tensor.shape)


def colours_first(tensor: Any, config: Any, shape: tuple[int, ...]) -> Any:
    """`[out, size * size * 3]`, for the order in which patches are given: `[out, 3 * size * size]`."""
    return tensor.reshape(len(tensor), -1, 3).swapaxes(1, 2).reshape(tensor.shape)


def _linear(ours: str, theirs: str, transform: Any = None) -> tuple[Rule, ...]:
    return (
        Rule(f"layers.*.{ours}.product.weight", f"{LAYER}.{theirs}.linear.weight", transform),
        *(Rule(f"layers.*.{ours}.{bound}", f"{LAYER}.{theirs}.{bound}", flat) for bound in BOUNDS),
    )


class BoundedLinear(nnx.Module):
    """A product whose inputs and outputs are kept between bounds, where it is `bounded`."""

    def __init__(
        self, in_size: int, out_size: int, *, axes: tuple[str, str], bounded: bool, context: ModelContext
    ) -> None:
        self.product = Linear(in_size, out_size, axes=axes, bias=False, context=context)
        for name in BOUNDS:
            setattr(self, name, context.parameter((1,), ("settings",)) if bounded else None)
        self.bounded = bounded

    def __call__(self, x: jax.Array, step: Any) -> jax.Array:
        """`[N, in]` -> `[N, out]`."""
        if not self.bounded:
            return self.product(x, step)
        low, high, least, most = (getattr(self, name)[...].astype(x.dtype) for name in BOUNDS)
        return jnp.clip(self.product(jnp.clip(x, low, high), step), least, most)


class Gemma4TowerAttention(nnx.Module):
    """Queries, keys and values are normalised by head, values without a scale; scores are not scaled."""

    def __init__(self, config: Gemma4TowerConfig, *, context: ModelContext) -> None:
        self.config, self.context = config, context
        heads = config.num_heads * config.head_dim

        def to_heads(axis: str) -> BoundedLinear:
            return BoundedLinear(config.width, heads, axes=(axis, "embed"), bounded=config.bounded, context=context)

        self.q, self.k, self.v = to_heads("heads"), to_heads("kv_heads"), to_heads("kv_heads")
        self.o = BoundedLinear(heads, config.width, axes=("embed", "heads"), bounded=config.bounded, context=context)
        self.q_norm, self.k_norm = (
            RMSNorm(config.head_dim, epsilon=config.epsilon, axis="head_dim", context=context) for _ in range(2)
        )

    @property
    def keeps(self) -> tuple[()]:
        """Nothing."""
        return ()

    def __call__(self, x: jax.Array, cache: Cache, step: TowerStep) -> tuple[jax.Array, Cache]:
        """`[N, W]` -> `[N, W]`, and the cache as it is."""
        context = self.context
        turn = partial(rotate, platform=context.platform)
        queries, keys, values = (
            of(x, step).reshape(len(x), -1, self.config.head_dim) for of in (self.q, self.k, self.v)
        )
        [angles] = step.shared.angles
        queries, keys = turn(self.q_norm(queries), *angles), turn(self.k_norm(keys), *angles)
        values = by_root_mean_square(values, epsilon=self.config.epsilon, context=context).astype(values.dtype)
        attend = partial(row_attention, scale=1.0, window=None, platform=context.platform)
        on_devices = context.layout.per_device(attend, inputs=(HEADS, KV_HEADS, KV_HEADS, None), outputs=HEADS)
        attended: jax.Array = on_devices(queries, keys, values, step.offsets)
        return self.o(attended.astype(context.activation_dtype).reshape(len(x), -1), step), cache


class Gemma4TowerMLP(nnx.Module):
    """A gated network of bounded products."""

    def __init__(self, config: Gemma4TowerConfig, *, context: ModelContext) -> None:
        self.activation = config.activation

        def linear(size: int, to: int, axes: tuple[str, str]) -> BoundedLinear:
            return BoundedLinear(size, to, axes=axes, bounded=config.bounded, context=context)

        self.gate, self.up = (linear(config.width, config.mlp_size, ("mlp", "embed")) for _ in range(2))
        self.down = linear(config.mlp_size, config.width, ("embed", "mlp"))

    def __call__(self, x: jax.Array, step: TowerStep) -> jax.Array:
        """`[N, W]` -> `[N, W]`."""
        return self.down(ACTIVATIONS[self.activation](self.gate(x, step)) * self.up(x, step), step)


class Gemma4Tower(Tower):
    """A `Tower`: an embedding is the mean of a block's patches, normalised and projected."""

    WEIGHTS: ClassVar[Sequence[Rule | Ignore]] = (
        Rule("patches.project.weight", f"{TOWER}.patch_embedder.input_proj.weight", colours_first),
        Rule("patches.positions", f"{TOWER}.patch_embedder.position_embedding_table", flat),
        *(
            rule
            for name in "qkvo"
            for rule in _linear(f"attention.{name}", f"self_attn.{name}_proj", by_halves if name in "qk" else None)
        ),
        *(rule for name in ("gate", "up", "down") for rule in _linear(f"mlp.{name}", f"mlp.{name}_proj")),
        *(
            Rule(f"layers.*.attention.{name}_norm.scale", f"{LAYER}.self_attn.{name}_norm.weight", by_halves)
            for name in "qk"
        ),
        *(
            Rule(f"layers.*.{ours}.scale", f"{LAYER}.{theirs}.weight")
            for ours, theirs in (
                ("attention_norm", "input_layernorm"),
                ("attention_output_norm", "post_attention_layernorm"),
                ("mlp_norm", "pre_feedforward_layernorm"),
                ("mlp_output_norm", "post_feedforward_layernorm"),
            )
        ),
        Rule("shift", f"{TOWER}.std_bias"),
        Rule("scale", f"{TOWER}.std_scale"),
        Rule("projector.weight", "[model.]embed_vision.embedding_projection.weight"),
    )
    IGNORED: ClassVar[Mapping[str, Ignored]] = {
        "attention_dropout": Ignored("only used in training"),
        "initializer_range": Ignored("only used in training"),
        "max_position_embeddings": Ignored("the table of positions says how many there are"),
        "attention_bias": Ignored("products have no biases", allowed=(False, None)),
        "default_output_length": Ignored("the processor's"),
        "global_head_dim": Ignored("of layers of texts"),
    }
    config: Gemma4TowerConfig

    def __init__(self, config: Gemma4TowerConfig, context: ModelContext) -> None:
        self.config, self.context = config, context
        self.patches = PatchEmbedding(
            config.patch_values, config.width, bias=False, num_positions=2 * config.side, context=context
        )

        def norm() -> RMSNorm:
            return RMSNorm(config.width, epsilon=config.epsilon, context=context)

        def block() -> Block:
            attention: Any = Gemma4TowerAttention(config, context=context)
            mlp: Any = Gemma4TowerMLP(config, context=context)
            return Block(attention, mlp, norm=norm, norms=Norms.SANDWICH)

        self.layers = nnx.List([block() for _ in range(config.num_layers)])
        self.shift, self.scale = (
            context.parameter((config.width,), ("embed",)) if config.standardised else None for _ in range(2)
        )
        self.projector = Linear(config.width, config.out_size, axes=("mlp", "embed"), bias=False, context=context)

    @classmethod
    def read_config(cls, reader: ConfigReader, *, out_size: int) -> Gemma4TowerConfig:
        """Of `vision_config`."""
        heads = reader.optional_size("num_attention_heads", 12)
        if (kv_heads := reader.optional_size("num_key_value_heads", 12)) != heads:
            raise ConfigError(
                f"config.json: vision_config: num_key_value_heads={kv_heads} is not built: as many as the {heads} heads are"
            )
        ropes = reader.raw("rope_parameters") or {}
        return Gemma4TowerConfig(
            width=reader.optional_size("hidden_size", 768),
            num_layers=reader.optional_size("num_hidden_layers", 16),
            num_heads=heads,
            mlp_size=reader.optional_size("intermediate_size", 3072),
            patch_values=3 * reader.optional_size("patch_size", 16) ** 2,
            merge=reader.optional_size("pooling_kernel_size", 3),
            out_size=out_size,
            head_size=reader.optional_size("head_dim", 64),
            side=reader.optional_size("position_embedding_size", 10_240),
            epsilon=reader.optional("rms_norm_eps", 1e-6, float),
            activation=reader.choice("hidden_activation", "gelu_pytorch_tanh", ACTIVATIONS),
            theta=float(ropes.get("rope_theta", 100.0)),
            bounded=reader.optional("use_clipped_linears", False, bool),
            standardised=reader.optional("standardize", False, bool),
        )

    @staticmethod
    def places(config: Gemma4TowerConfig, grids: Sequence[ItemGrid]) -> Places:
        positions, taken, counts = [], [], []
        before = 0
        for grid in grids:
            numbers = np.arange(grid.height * grid.width, dtype=np.int32).reshape(grid.height, grid.width)
            shape = (grid.height // config.merge, config.merge, grid.width // config.merge, config.merge)
            blocks = numbers.reshape(shape).swapaxes(1, 2).reshape(-1, config.merge**2)
            positions.append(in_blocks(grid, 1)[:, ::-1])  # columns first
            taken.append(blocks + before)
            counts.append(numbers.size)
            before += numbers.size
        offsets, at = starts(counts), np.concatenate(positions)
        return Places(
            offsets=offsets,
            windows=offsets,
            positions=at,
            table=(at + np.array([0, config.side])).astype(np.int32),
            shares=np.ones((before, 2), np.float32),
            taken=np.concatenate(taken),
            order=np.arange(before, dtype=np.int32),
        )

    def embed_patches(self, patches: jax.Array, step: TowerStep) -> tuple[jax.Array, Shared]:
        angles = axial_angles(step.positions, self.config.head_dim, theta=self.config.theta)
        return self.patches(2 * (patches - 0.5), step), Shared((angles,))

    def embeddings(self, x: jax.Array, tapped: Sequence[jax.Array], step: TowerStep) -> jax.Array:
        config, dtype = self.config, self.context.activation_dtype
        means = jnp.take(x, step.taken, axis=0, mode="clip").astype(jnp.float32).mean(axis=1) * config.width**0.5
        if self.shift is not None and self.scale is not None:
            means = (means - self.shift[...].astype(jnp.float32)) * self.scale[...].astype(jnp.float32)
        normed = by_root_mean_square(means.astype(dtype), epsilon=config.epsilon, context=self.context)
        return self.projector(normed.astype(dtype), None)
