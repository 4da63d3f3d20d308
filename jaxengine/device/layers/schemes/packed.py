"""Matrices of encoders on a CPU, packed while they are loaded as its vectors read them (`pallas_kernels.packed_matmul`).

Whole texts are multiplied, so that products are bound by arithmetic, and to pack a matrix in every step would cost a tenth of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from jaxengine.device.layers.schemes import WEIGHT, KeptMatrix
from jaxengine.device.layers.schemes.dense import Dense
from jaxengine.device.weights.rules import Array, KvHeads, Rule
from pallas_kernels import packed_matmul, packed_shape

if TYPE_CHECKING:
    from jaxengine.device.layers.context import ModelContext


@dataclass(frozen=True)
class Packed(Dense):
    """A `Scheme`: a matrix of the model's dtype in panels, or plain where it lies in none. On one device."""

    def parameters(
        self, shape: tuple[int, int], axes: tuple[str, str], context: ModelContext
    ) -> Mapping[str, nnx.Param[jax.Array]]:
        panels = packed_shape(*shape, str(jnp.dtype(context.dtype)))
        if panels is None:
            return super().parameters(shape, axes, context)
        return {WEIGHT: context.parameter(panels, (*axes, *("panel",) * (len(panels) - 2)))}

    def multiply(
        self, x: jax.Array, matrix: KeptMatrix, *, dtype: DTypeLike, used: jax.Array | None = None
    ) -> jax.Array:
        weight = matrix.arrays[WEIGHT]
        if not is_packed(weight):
            return super().multiply(x, matrix, dtype=dtype, used=used)
        flat = x.reshape(-1, x.shape[-1]).astype(jnp.float32)
        (y,) = packed_matmul(flat, [weight], [None], used=used, platform=matrix.context.platform)
        return y.reshape(*x.shape[:-1], -1).astype(dtype)

    def multiply_each(
        self, x: jax.Array, matrices: Sequence[KeptMatrix], *, dtype: DTypeLike, used: jax.Array | None = None
    ) -> tuple[jax.Array, ...] | None:
        if any(is_packed(matrix.arrays[WEIGHT]) for matrix in matrices):
            return None
        return super().multiply_each(x, matrices, dtype=dtype, used=used)

    def rules(self, rule: Rule) -> tuple[Rule, ...]:
        return super().rules(rule) if rule.stacked else (replace(rule, transform=partial(_packed, rule)),)


def is_packed(weight: jax.Array) -> bool:
    """Whether a parameter is a matrix in panels: these have three axes and more, plain ones two (`packed_shape`)."""
    return weight.ndim > 2


def _packed(rule: Rule, tensor: Array, config: KvHeads, shape: tuple[int, ...]) -> Array:
    """What `rule` makes of a tensor, for a parameter of `shape`."""
    if len(shape) == 2:
        return rule.rows(tensor, config, shape)
    panels, steps, columns, *together = shape
    plain = rule.rows(tensor, config, (panels * columns, steps * math.prod(together)))
    return plain.reshape(panels, columns, steps, *together).swapaxes(1, 2)


PACKED = Packed()
