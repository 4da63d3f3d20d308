"""Matrices of bfloat16 in 12 bits a number, without loss, where a CPU reads them faster (`pallas_kernels.coded_matmul`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike

from jaxengine.device.layers.schemes import WEIGHT, KeptMatrix
from jaxengine.device.layers.schemes.dense import Dense
from jaxengine.device.weights.rules import Array, KvHeads, Made, Rule
from pallas_kernels import coded_matmul, coded_rows, coded_shape
from pallas_kernels.coded_matmul.coding import coder, plain_shape

if TYPE_CHECKING:
    from jaxengine.device.layers.context import ModelContext

CODED_DTYPE = jnp.uint16


@dataclass(frozen=True)
class Coded(Dense):
    """A `Scheme`: a matrix coded, or plain where its inputs are not cut so. On one device, of a model in bfloat16.

    Products have the bits of the plain matrix'. Matrices of experts are plain.
    """

    def parameters(
        self, shape: tuple[int, int], axes: tuple[str, str], context: ModelContext
    ) -> Mapping[str, nnx.Param[jax.Array]]:
        coded = coded_shape(*shape)
        if coded is None:
            return super().parameters(shape, axes, context)
        return {WEIGHT: context.parameter(coded, axes, dtype=CODED_DTYPE)}

    def multiply(
        self, x: jax.Array, matrix: KeptMatrix, *, dtype: DTypeLike, used: jax.Array | None = None
    ) -> jax.Array:
        if not is_coded(matrix.arrays[WEIGHT]):
            return super().multiply(x, matrix, dtype=dtype, used=used)
        return _products(x, [matrix], dtype=dtype, used=used)[0]

    def multiply_each(
        self, x: jax.Array, matrices: Sequence[KeptMatrix], *, dtype: DTypeLike, used: jax.Array | None = None
    ) -> tuple[jax.Array, ...] | None:
        coded = [is_coded(matrix.arrays[WEIGHT]) for matrix in matrices]
        if all(coded):
            return _products(x, matrices, dtype=dtype, used=used)
        return None if any(coded) else super().multiply_each(x, matrices, dtype=dtype, used=used)

    def rows(self, numbers: jax.Array, parameters: Mapping[str, jax.Array]) -> jax.Array:
        matrix = parameters[WEIGHT]
        if not is_coded(matrix):
            return super().rows(numbers, parameters)
        return coded_rows(numbers.reshape(-1), matrix, platform="cpu").reshape(*numbers.shape, -1)

    def rules(self, rule: Rule) -> tuple[Rule, ...]:
        if rule.stacked:
            return super().rules(rule)

        def coded(tensor: Any, config: KvHeads, shape: tuple[int, ...]) -> Array | Made:
            plain = plain_shape(shape)
            return (
                rule.rows(tensor, config, shape) if plain is None else Coding(rule.rows(tensor, config, plain), shape)
            )

        return (replace(rule, transform=coded),)


@dataclass(frozen=True)
class Coding:
    """A plain matrix as it is kept coded (`Made`), in `shape`."""

    matrix: Array
    shape: tuple[int, ...]

    def fill(self, out: Array, part: tuple[slice, ...]) -> None:
        """Write all of it to `out`, a few rows after the other: those of another type are rounded first."""
        step = max(1, _ROUNDED // self.shape[1])
        for first in range(0, self.shape[0], step):
            rows = np.ascontiguousarray(self.matrix[first : first + step], jnp.bfloat16)
            coder().code(rows.view(np.uint16), out, first)


CODED = Coded()

_ROUNDED = 1 << 20
"""Numbers at once."""


def plain(parameters: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    """Parameters by their paths, those that are coded as the matrices that they stand for: copies in host memory."""
    return {
        path: jax.device_put(coder().decode(np.asarray(array)).view(jnp.bfloat16)) if is_coded(array) else array
        for path, array in parameters.items()
    }


def is_coded(weight: jax.Array | jax.ShapeDtypeStruct) -> bool:
    """Whether a parameter is a coded matrix."""
    return bool(weight.dtype == CODED_DTYPE)


def _products(
    x: jax.Array, matrices: Sequence[KeptMatrix], *, dtype: DTypeLike, used: jax.Array | None
) -> tuple[jax.Array, ...]:
    rows = x.reshape(-1, x.shape[-1]).astype(jnp.bfloat16)
    found = coded_matmul(
        rows, [matrix.arrays[WEIGHT] for matrix in matrices], used=used, platform=matrices[0].context.platform
    )
    return tuple(each.reshape(*x.shape[:-1], -1).astype(dtype) for each in found)
