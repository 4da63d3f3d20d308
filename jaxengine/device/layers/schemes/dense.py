"""Matrices as the checkpoint has them, in the model's dtype."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from jaxengine.device.layers.schemes import WEIGHT, KeptMatrix
from jaxengine.device.weights.rules import Rule, transpose
from pallas_kernels import grouped_matmul, matmul, matmul_each

if TYPE_CHECKING:
    from jaxengine.device.layers.context import ModelContext


@dataclass(frozen=True)
class Dense:
    """A `Scheme`."""

    dtype: str = "model"

    def parameters(
        self, shape: tuple[int, int], axes: tuple[str, str], context: ModelContext
    ) -> Mapping[str, nnx.Param[jax.Array]]:
        return {WEIGHT: context.parameter(shape, axes)}

    def multiply(
        self, x: jax.Array, matrix: KeptMatrix, *, dtype: DTypeLike, used: jax.Array | None = None
    ) -> jax.Array:
        context, weight = matrix.context, matrix.arrays[WEIGHT]
        return matmul(x, weight, used=used, precision=context.precision, dtype=dtype, platform=context.platform)

    def multiply_parts(self, x: jax.Array, matrix: KeptMatrix, *, dtype: DTypeLike) -> jax.Array | None:
        context, axes = matrix.context, matrix.axes

        def product(x: jax.Array, weight: jax.Array) -> jax.Array:
            return matmul(x, weight, precision=context.precision, dtype=dtype, platform=context.platform)[None]

        on_devices = context.layout.per_device(
            product, inputs=(("tokens", axes[1]), axes), outputs=(axes[1], "tokens", axes[0])
        )
        found: jax.Array = on_devices(x, matrix.arrays[WEIGHT])
        return found

    def multiply_each(
        self, x: jax.Array, matrices: Sequence[KeptMatrix], *, dtype: DTypeLike, used: jax.Array | None = None
    ) -> tuple[jax.Array, ...] | None:
        context = matrices[0].context
        return matmul_each(
            x,
            [matrix.arrays[WEIGHT] for matrix in matrices],
            scales=[None for _ in matrices],
            used=used,
            precision=context.precision,
            dtype=dtype,
            platform=context.platform,
        )

    def rows(self, numbers: jax.Array, parameters: Mapping[str, jax.Array]) -> jax.Array:
        return jnp.take(parameters[WEIGHT], numbers, axis=0, mode="clip")

    def group_parameters(
        self, shape: tuple[int, int, int], axes: tuple[str, str, str], context: ModelContext
    ) -> Mapping[str, nnx.Param[jax.Array]]:
        return {WEIGHT: context.parameter(shape, axes)}

    def multiply_groups(
        self,
        x: jax.Array,
        parameters: Mapping[str, jax.Array],
        sizes: jax.Array,
        context: ModelContext,
        *,
        rows: jax.Array | None,
        across: tuple[str, ...],
    ) -> jax.Array:
        return grouped_matmul(
            x,
            parameters[WEIGHT],
            sizes,
            rows=rows,
            precision=context.precision,
            dtype=context.activation_dtype,
            platform=context.platform,
        )

    def rules(self, rule: Rule) -> tuple[Rule, ...]:
        if not rule.stacked:
            return (rule,)
        return (replace(rule, transform=rule.then(transpose)),)

    def stored_rules(self, rule: Rule) -> tuple[Rule, ...]:
        return self.rules(rule)


DENSE = Dense()
