"""What all towers share: patches enter, go through layers, and leave as embeddings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from jaxengine.device.layers.cache import Cache
from jaxengine.device.layers.context import ModelContext
from jaxengine.device.layers.linear import Linear
from jaxengine.device.layers.sharding import Layout
from jaxengine.device.layers.step import Angles, Shared
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.towers.places import ItemGrid, Places
from jaxengine.device.models.towers.step import TowerStep
from jaxengine.device.weights.rules import Ignore, Rule

NOTHING = Cache((), {})


@dataclass(frozen=True, kw_only=True)
class TowerConfig:
    """Sizes of a tower: a patch has `patch_values` numbers, `merge` by `merge` of them become an embedding of `out_size`.

    A checkpoint has `depth` layers, where that is more than the `num_layers` that are read. Behind the layers `taps` the stream
    is read beside the end; of each an embedding has a further part.
    """

    width: int
    num_layers: int
    num_heads: int
    mlp_size: int
    patch_values: int
    merge: int
    out_size: int
    taps: tuple[int, ...] = ()
    depth: int | None = None

    @property
    def head_dim(self) -> int:
        return self.width // self.num_heads

    @property
    def num_kv_heads(self) -> int:
        """As many as there are heads."""
        return self.num_heads

    @property
    def block(self) -> int:
        """Patches of an embedding."""
        return self.merge**2

    @property
    def extra_places(self) -> int:
        """Places of a row that are no patches."""
        return 0

    @property
    def least(self) -> ItemGrid:
        """The smallest item."""
        return ItemGrid(1, self.merge, self.merge)

    def num_embeddings(self, patches: int, rows: int) -> int:
        """The most embeddings of so many patches in so many rows."""
        return patches // self.block

    def num_windows(self, patches: int, rows: int) -> int:
        """The most windows of so many patches in so many rows: rows are their own where no layer sees windows."""
        return rows

    def shared_by(self, layout: Layout) -> Layout:
        """How devices have the tower: a part of each layer where that divides, else each has all of it."""
        divides = not (self.num_heads % layout.shards("heads") or self.mlp_size % layout.shards("mlp"))
        return layout if divides and not layout.own_tokens else layout.without_sharing()


class Tower(nnx.Module):
    """An encoder of patches as a Flax NNX module.

    Letters: N places, M embeddings, W width, P numbers of a patch, E embedding size.
    """

    WEIGHTS: ClassVar[Sequence[Rule | Ignore]]
    IGNORED: ClassVar[Mapping[str, Ignored]] = {}
    layers: Sequence[Any]
    config: Any

    def __init__(self, config: Any, context: ModelContext) -> None:
        raise NotImplementedError

    @staticmethod
    def places(config: Any, grids: Sequence[ItemGrid]) -> Places:
        """Where the patches of these items lie."""
        raise NotImplementedError

    def embed_patches(self, patches: jax.Array, step: TowerStep) -> tuple[jax.Array, Shared]:
        """`patches [N, P]` in the order of their places -> the stream `[N, W]`, and what all layers are given."""
        raise NotImplementedError

    def sees_windows(self, layer: int) -> bool:
        """Whether the places of this layer see their window alone."""
        return False

    def embeddings(self, x: jax.Array, tapped: Sequence[jax.Array], step: TowerStep) -> jax.Array:
        """The stream behind the last layer and behind `taps` -> `[M, (1 + taps) * E]`."""
        raise NotImplementedError

    def run_layer(self, number: int, x: jax.Array, step: TowerStep) -> jax.Array:
        """The stream `[N, W]` behind a layer."""
        y, _ = self.layers[number](x, NOTHING, step.within_windows() if self.sees_windows(number) else step)
        return y  # type: ignore[no-any-return]

    def write(
        self, pool: jax.Array, x: jax.Array, tapped: Sequence[jax.Array], step: TowerStep, targets: jax.Array
    ) -> jax.Array:
        """The pool with the embeddings of the stream in the rows `targets [M]`; a target behind its end is of none."""
        return pool.at[targets].set(self.embeddings(x, tapped, step).astype(pool.dtype), mode="drop")

    def __call__(self, patches: jax.Array, step: TowerStep) -> jax.Array:
        """All of it at once, as the programs of an encoder do it one after the other: `[M, (1 + taps) * E]`."""
        x, shared = self.embed_patches(patches, step)
        step, tapped = step.sharing(shared), []
        for number in range(len(self.layers)):
            x = self.run_layer(number, x, step)
            if number in self.config.taps:
                tapped.append(x)
        return self.embeddings(x, tapped, step)


class PatchEmbedding(nnx.Module):
    """A product of each patch with a matrix, and what a table of positions has for its place."""

    def __init__(
        self, patch_values: int, width: int, *, bias: bool, num_positions: int = 0, context: ModelContext
    ) -> None:
        """Without `num_positions` nothing is added."""
        self.context = context
        self.project = Linear(patch_values, width, axes=("embed", "patch"), bias=bias, context=context)
        self.positions = context.parameter((num_positions, width), ("positions", "embed")) if num_positions else None

    def __call__(self, patches: jax.Array, step: TowerStep) -> jax.Array:
        """`patches [N, P]` -> `[N, W]`."""
        x = self.project(patches.astype(self.context.activation_dtype), None)
        return x if self.positions is None else x + self.of_places(step)

    def of_places(self, step: TowerStep) -> jax.Array:
        """What is added to each place."""
        assert self.positions is not None
        rows = jnp.take(self.positions[...], step.table, axis=0, mode="clip").astype(jnp.float32)
        return (rows * step.shares[:, :, None]).sum(axis=1).astype(self.context.activation_dtype)


def axial_angles(positions: jax.Array, head_dim: int, *, theta: float = 10000.0) -> Angles:
    """Of rotary positions in two axes: half of a head's pairs turn by the row, half by the column, both from the same
    frequencies. `positions [N, 2]` -> cosines and sines `[N, 1, head_dim / 2]`."""
    exponents = jnp.arange(0, head_dim // 2, 2, dtype=jnp.float32) / (head_dim // 2)
    frequencies = 1.0 / theta**exponents
    angles = positions.astype(jnp.float32)[:, :, None] * frequencies
    angles = angles.reshape(len(positions), 1, -1)
    return jnp.cos(angles), jnp.sin(angles)


def gathered(x: jax.Array, step: TowerStep) -> jax.Array:
    """`x [N, W]` -> of each embedding its places side by side, `[M, K * W]`."""
    return jnp.take(x, step.taken, axis=0, mode="clip").reshape(len(step.taken), -1)


def flat_filters(tensor: Any, config: Any, shape: tuple[int, ...]) -> Any:
    """`[out, channels, ..., size, size]` of a convolution becomes `[out, in]`: the order in which patches are given."""
    return tensor.reshape(len(tensor), -1)
