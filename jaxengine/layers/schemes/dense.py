"""Matrices as the checkpoint has them, in the model's dtype."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax
from flax import nnx

from jaxengine.layers.schemes import WEIGHT
from jaxengine.weights.rules import Rule
from pallas_kernels import matmul

if TYPE_CHECKING:
    from jaxengine.layers.context import ModelContext


@dataclass(frozen=True)
class Dense:
    """A `Scheme`."""

    name: None = None

    def parameters(
        self, shape: tuple[int, ...], axes: tuple[str, ...], context: ModelContext
    ) -> Mapping[str, nnx.Param[jax.Array]]:
        return {WEIGHT: context.parameter(shape, axes)}

    def multiply(self, x: jax.Array, parameters: Mapping[str, jax.Array], context: ModelContext) -> jax.Array:
        return matmul(x, parameters[WEIGHT], precision=context.precision, platform=context.platform)

    def rules(self, rule: Rule) -> tuple[Rule, ...]:
        return (rule,)


DENSE = Dense()
