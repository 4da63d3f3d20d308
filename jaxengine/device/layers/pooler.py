"""From the hidden states of a step to what stands for its rows and tokens: pooling, then a few projections."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxengine.contract.pooling import Pooling
from jaxengine.device.layers.activation import ACTIVATIONS
from jaxengine.device.layers.context import ModelContext
from jaxengine.device.layers.norm import by_deviation
from jaxengine.device.weights.rules import Array, Rule, Transform
from pallas_kernels import matmul


@dataclass(frozen=True, kw_only=True)
class ProjectionShape:
    """A matrix `[outputs, inputs]` and what follows it. `source` is what the checkpoint calls it.

    Of a matrix that is made of the vocabulary's, `tokens` are the rows it has; of two with `difference` the second minus the
    first. Behind the activation there may be a `norm`, by its name, without a shift.
    """

    inputs: int
    outputs: int
    source: str
    bias: bool = False
    activation: str | None = None
    norm: str | None = None
    epsilon: float = 1e-5
    tokens: tuple[int, ...] = ()
    difference: bool = False

    @property
    def transform(self) -> Transform | None:
        """What makes the matrix of the checkpoint's tensor."""
        if not self.tokens:
            return None

        def rows(tensor: Array, config: Any, shape: tuple[int, ...]) -> Array:
            chosen = tensor[np.asarray(self.tokens)].astype(np.float32)
            return chosen[1:] - chosen[:1] if self.difference else chosen

        return rows

    def rules(self, target: str) -> tuple[Rule, ...]:
        """The rows of a weight table for the projection that has this path in the model."""
        matrix = Rule(f"{target}.matrix", self.source if self.tokens else f"{self.source}.weight", self.transform)
        return (
            matrix,
            *([Rule(f"{target}.bias", f"{self.source}.bias")] if self.bias else []),
            *([Rule(f"{target}.scale", f"{self.norm}.weight")] if self.norm else []),
        )


@dataclass(frozen=True, kw_only=True)
class PoolerShape:
    """How the hidden states of a row are pooled, and what the result goes through; each token goes through the last `of_each`.

    Where there are projections `of_tokens`, a token goes through each of these instead: its numbers are theirs, side by side.
    `folders` of the checkpoint, or files `FOLDER.pt` in it, have projections of their own; their tensors' names begin with them.
    """

    pooling: Pooling = Pooling.LAST
    projections: tuple[ProjectionShape, ...] = ()
    of_each: int = 0
    of_tokens: tuple[ProjectionShape, ...] = ()
    folders: tuple[str, ...] = ()

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rows of a weight table for its parameters."""
        of_rows = [(f"projections.{number}", shape) for number, shape in enumerate(self.projections)]
        of_tokens = [(f"of_tokens.{number}", shape) for number, shape in enumerate(self.of_tokens)]
        return tuple(rule for path, shape in (*of_rows, *of_tokens) for rule in shape.rules(f"pooler.{path}"))

    def size(self, width: int) -> int:
        """How many numbers stand for a row, of hidden states of so many."""
        return self.projections[-1].outputs if self.projections else width

    def each_size(self, width: int) -> int:
        """How many numbers stand for a token."""
        if self.of_tokens:
            return sum(shape.outputs for shape in self.of_tokens)
        return self.size(width) if self.of_each else width


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Pooled:
    """Of a step with B rows in N places: what stands for each row `[B, D]`, and for each place `[N, C]`, in float32."""

    rows: jax.Array
    places: jax.Array


class Projection(nnx.Module):
    """A matrix in float32, whatever the model's are: it is small, and answers are compared by what it gives."""

    def __init__(self, shape: ProjectionShape, *, context: ModelContext) -> None:
        self.shape = shape
        self.context = context
        self.matrix = context.parameter((shape.outputs, shape.inputs), ("inputs", "embed"), dtype=jnp.float32)
        self.bias = context.parameter((shape.outputs,), ("inputs",), dtype=jnp.float32) if shape.bias else None
        self.scale = context.parameter((shape.outputs,), ("inputs",), dtype=jnp.float32) if shape.norm else None

    def __call__(self, x: jax.Array) -> jax.Array:
        """`x float32 [R, inputs]` -> float32 `[R, outputs]`."""
        y = matmul(x, self.matrix[...], precision=jax.lax.Precision.HIGHEST, platform=self.context.platform)
        if self.bias is not None:
            y = y + self.bias[...]
        y = y if self.shape.activation is None else ACTIVATIONS[self.shape.activation](y)
        if self.scale is not None:
            y = by_deviation(y, epsilon=self.shape.epsilon, context=self.context) * self.scale[...]
        return y


class Pooler(nnx.Module):
    """The head of a model that pools."""

    def __init__(self, shape: PoolerShape, *, context: ModelContext) -> None:
        self.shape = shape
        self.context = context
        self.projections = nnx.List([Projection(each, context=context) for each in shape.projections])
        self.of_tokens = nnx.List([Projection(each, context=context) for each in shape.of_tokens])

    def __call__(self, hidden: jax.Array, offsets: jax.Array) -> Pooled:
        """`hidden [N, E]` of rows that begin and end at `offsets int32 [B + 1]`; of rows that are not there it means nothing."""
        wide = hidden.astype(jnp.float32)
        rows, places = self._pooled(wide, offsets), wide
        for projection in self.projections:
            rows = projection(rows)
        for projection in self.projections[len(self.projections) - self.shape.of_each :]:
            places = projection(places)
        if self.shape.of_tokens:
            places = jnp.concatenate([projection(wide) for projection in self.of_tokens], axis=1)
        if self.shape.pooling is Pooling.LATE:
            rows = self._means(places, offsets)
        return Pooled(rows, places)

    def _pooled(self, hidden: jax.Array, offsets: jax.Array) -> jax.Array:
        """`[B, E]`."""
        if self.shape.pooling is Pooling.MEAN:
            return self._means(hidden, offsets)
        at = offsets[:-1] if self.shape.pooling is Pooling.FIRST else jnp.maximum(offsets[1:] - 1, 0)
        return jnp.take(hidden, at, axis=0, mode="clip")

    def _means(self, numbers: jax.Array, offsets: jax.Array) -> jax.Array:
        """A row's mean is summed from its first token to its last, wherever in the step it lies."""
        counts = jnp.maximum(offsets[1:] - offsets[:-1], 1).astype(jnp.float32)
        return self._sums(numbers, offsets) / counts[:, None]

    def _sums(self, hidden: jax.Array, offsets: jax.Array) -> jax.Array:
        places, num_rows = jnp.arange(hidden.shape[0], dtype=jnp.int32), offsets.shape[0] - 1
        if self.context.platform == "cpu":  # adds one place after the other
            numbers = jnp.searchsorted(offsets[1:], places, side="right")
            return jax.ops.segment_sum(hidden, numbers, num_segments=num_rows, indices_are_sorted=True)
        within = (places >= offsets[:-1, None]) & (places < offsets[1:, None])
        return jnp.matmul(within.astype(jnp.float32), hidden, precision=jax.lax.Precision.HIGHEST)
