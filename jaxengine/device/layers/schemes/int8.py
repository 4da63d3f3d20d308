"""int8 matrices, quantised while a plain checkpoint is loaded: symmetric, one scale for each output channel.

Activations are rounded to int8 in the product, each row over a scale of its own (`pallas_kernels.matmul`).

What it costs (`benchmarks/quantization.py accuracy`), in perplexity:

                                            float32    int8   bfloat16    int8
    stories260K on a sample of TinyStories    5.804   5.800      5.799   5.801   (1,785 tokens)
    embedded model on texts it sampled        3.080   3.085      3.080   3.086   (8,670 tokens)

A product is off by 0.3 to 3% of its root mean square: queries and keys by 0.3 to 2%, values by 1 to 3%, gate and up by 0.6 to 2%,
down, whose inputs have outliers, by 2 to 3%. Of 5,505,024 bytes in bfloat16 (embedded model) the matrices take 2,789,376, scales
included.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from numpy.typing import NDArray

from jaxengine.device.layers.schemes import WEIGHT, part_of
from jaxengine.device.weights.rules import Array, KvHeads, Rule, Turned
from pallas_kernels import grouped_matmul, matmul
from pallas_kernels.matmul.parts import Parts

if TYPE_CHECKING:
    from jaxengine.device.layers.context import ModelContext

SCALE = "scale"
CHUNK = 1 << 16
"""Numbers that are quantised at once: what they become in float32 stays in a processor's cache, and memory is not held for it."""


@dataclass(frozen=True)
class Int8:
    """A `Scheme`: `weight` int8 `[out, in]` and `scale` float32 `[out]`, whose product is near the plain matrix.

    Each device has some of the outputs of every matrix: `pallas_kernels.matmul.parts` says what is sent. Where the outputs of one
    whose inputs would be cut do not divide, they are, and the compiler adds sums of integers.
    """

    dtype: str = "int8"

    def parameters(
        self, shape: tuple[int, int], axes: tuple[str, str], context: ModelContext
    ) -> Mapping[str, nnx.Param[jax.Array]]:
        axes = context.layout.axes_by_output(shape[0], axes)
        return {
            WEIGHT: context.parameter(shape, axes, dtype=jnp.int8),
            SCALE: context.parameter(shape[:1], axes[:1], dtype=jnp.float32),
        }

    def multiply(
        self,
        x: jax.Array,
        parameters: Mapping[str, jax.Array],
        axes: tuple[str, str],
        context: ModelContext,
        *,
        dtype: DTypeLike,
    ) -> jax.Array:
        weight, scales, layout = parameters[WEIGHT], parameters[SCALE], context.layout
        multiply = functools.partial(matmul, dtype=dtype, platform=context.platform)
        kept = layout.axes_by_output(len(weight), axes)
        if not layout.parallel or layout.shards(kept[1]) > 1:
            return multiply(x, weight, scales=scales)
        # The compiler would send rows before they are rounded, and cannot cut a kernel.
        split = axes[1] == "embed" and layout.splits_stream(x.shape[0], platform=context.platform)
        whole = ("tokens",) * (x.ndim - 1)
        rows = ("split_tokens", *whole[1:]) if split else whole
        parts = Parts(rows=layout.across(rows[0]), inputs=layout.across(axes[1]))
        on_devices = layout.per_device(
            lambda x, weight, scales: multiply(x, weight, scales=scales, parts=parts),
            inputs=((*rows, axes[1]), kept, kept[:1]),
            outputs=(*whole, kept[0]),
        )
        product: jax.Array = on_devices(x, weight, scales)
        return product

    def factor(self, parameters: Mapping[str, jax.Array]) -> tuple[jax.Array, jax.Array | None]:
        return parameters[WEIGHT], parameters[SCALE]

    def group_parameters(
        self, shape: tuple[int, int, int], axes: tuple[str, str, str], context: ModelContext
    ) -> Mapping[str, nnx.Param[jax.Array]]:
        return {
            WEIGHT: context.parameter(shape, axes, dtype=jnp.int8),
            SCALE: context.parameter((shape[0], shape[2]), (axes[0], axes[2]), dtype=jnp.float32),
        }

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
            scales=parameters[SCALE],
            across=across,
            dtype=context.activation_dtype,
            platform=context.platform,
        )

    def rules(self, rule: Rule) -> tuple[Rule, ...]:
        weights = _turned_weights if rule.stacked else _weights
        return tuple(
            replace(rule, target=part_of(rule.target, name), transform=rule.then(make))
            for name, make in ((WEIGHT, weights), (SCALE, _scales))
        )

    def stored_rules(self, rule: Rule) -> tuple[Rule, ...]:
        def weight(matrix: Array, config: KvHeads, shape: tuple[int, ...]) -> Array:
            return rule.rows(matrix, config, shape[::-1]).T if rule.stacked else rule.rows(matrix, config, shape)

        def scale(scales: Array, config: KvHeads, shape: tuple[int, ...]) -> Array:
            return rule.rows(scales, config, (*shape, 1))[:, 0]

        return (
            replace(rule, transform=weight),
            rule.of_part(part_of(rule.target, SCALE), SCALE, scale),
        )


INT8 = Int8()


class Int8Weights:
    """The int8 numbers of `matrix [out, in]`, made as they are asked for; a part of a row by the whole row's scale."""

    def __init__(self, matrix: Array) -> None:
        self._matrix = matrix
        self.shape: tuple[int, ...] = matrix.shape
        # devices that share rows ask for the same ones, one after the other
        self._scales = functools.lru_cache(maxsize=1)(lambda rows: row_scales(self._matrix[slice(*rows)]))

    def fill(self, out: Array, part: tuple[slice, ...]) -> None:
        """Write the numbers within `part` to `out`."""
        rows, inputs = part
        scales = self._scales((rows.start, rows.stop))
        matrix = self._matrix[rows, inputs]
        for chunk in _chunks(matrix):
            wide = matrix[chunk].astype(np.float32)
            wide /= np.where(scales[chunk] == 0, np.float32(1), scales[chunk])[:, None]
            np.copyto(out[chunk], np.rint(wide, out=wide), casting="unsafe")


class Int8Scales:
    """The scales `[out]` of `matrix [out, in]`, made as they are asked for."""

    def __init__(self, matrix: Array) -> None:
        self._matrix = matrix
        self.shape: tuple[int, ...] = matrix.shape[:1]

    def fill(self, out: Array, part: tuple[slice, ...]) -> None:
        """Write the scales within `part` to `out`."""
        out[:] = row_scales(self._matrix[part[0]])


def row_scales(matrix: Array) -> NDArray[np.float32]:
    """Each row's largest magnitude over 127."""
    scales = np.empty(len(matrix), np.float32)
    for chunk in _chunks(matrix):
        wide = matrix[chunk].astype(np.float32)
        scales[chunk] = np.abs(wide, out=wide).max(axis=1, initial=0) / np.float32(127)
    return scales


def _chunks(matrix: Array) -> list[slice]:
    """Rows that are worked on at once."""
    count = max(1, CHUNK // max(1, matrix.shape[1]))
    return [slice(first, first + count) for first in range(0, len(matrix), count)]


def _weights(matrix: Array, config: KvHeads, shape: tuple[int, ...]) -> Int8Weights:
    return Int8Weights(matrix)


def _turned_weights(matrix: Array, config: KvHeads, shape: tuple[int, ...]) -> Turned:
    return Turned(Int8Weights(matrix))


def _scales(matrix: Array, config: KvHeads, shape: tuple[int, ...]) -> Int8Scales:
    return Int8Scales(matrix)
