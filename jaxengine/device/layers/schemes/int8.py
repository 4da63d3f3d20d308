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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from jaxengine.device.layers.schemes import WEIGHT, KeptMatrix, part_of
from jaxengine.device.layers.schemes.rounding import Rounded, RowScales, TensorsFound, row_scales
from jaxengine.device.weights.formats import Numbers
from jaxengine.device.weights.rules import Array, KvHeads, Made, Rule, Turned
from pallas_kernels import grouped_matmul, matmul, matmul_each
from pallas_kernels.matmul.parts import Parts

if TYPE_CHECKING:
    from jaxengine.device.layers.context import ModelContext

SCALE = "scale"


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
        self, x: jax.Array, matrix: KeptMatrix, *, dtype: DTypeLike, used: jax.Array | None = None
    ) -> jax.Array:
        weight, scales = matrix.arrays[WEIGHT], matrix.arrays[SCALE]
        context, layout, axes = matrix.context, matrix.context.layout, matrix.axes
        multiply = functools.partial(matmul, dtype=dtype, platform=context.platform)
        cut = layout.axes_by_output(len(weight), axes)
        if not layout.parallel or layout.shards(cut[1]) > 1:
            return multiply(x, weight, scales=scales, used=used)
        # The compiler would send rows before they are rounded, and cannot cut a kernel.
        split = axes[1] == "embed" and layout.splits_stream(x.shape[0], platform=context.platform)
        whole = ("tokens",) * (x.ndim - 1)
        rows = ("split_tokens", *whole[1:]) if split else whole
        parts = Parts(rows=layout.across(rows[0]), inputs=layout.across(axes[1]))
        on_devices = layout.per_device(
            lambda x, weight, scales: multiply(x, weight, scales=scales, parts=parts),
            inputs=((*rows, axes[1]), cut, cut[:1]),
            outputs=(*whole, cut[0]),
        )
        product: jax.Array = on_devices(x, weight, scales)
        return product

    def multiply_parts(self, x: jax.Array, matrix: KeptMatrix, *, dtype: DTypeLike) -> jax.Array | None:
        return None

    def multiply_each(
        self, x: jax.Array, matrices: Sequence[KeptMatrix], *, dtype: DTypeLike, used: jax.Array | None = None
    ) -> tuple[jax.Array, ...]:
        return matmul_each(
            x,
            [matrix.arrays[WEIGHT] for matrix in matrices],
            scales=[matrix.arrays[SCALE] for matrix in matrices],
            used=used,
            dtype=dtype,
            platform=matrices[0].context.platform,
        )

    def rows(self, numbers: jax.Array, parameters: Mapping[str, jax.Array]) -> jax.Array:
        scales = jnp.take(parameters[SCALE], numbers, mode="clip")[:, None]
        return jnp.take(parameters[WEIGHT], numbers, axis=0, mode="clip").astype(scales.dtype) * scales

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
        tensors = TensorsFound()

        def weight(tensor: Array, config: KvHeads, shape: tuple[int, ...]) -> Made:
            matrix = rule.rows(tensor, config, shape[::-1] if rule.stacked else shape)
            rounded = Rounded(matrix, Numbers(dtype="int8"), row_scales, tensors.of(tensor))
            return Turned(rounded) if rule.stacked else rounded

        def scale(tensor: Array, config: KvHeads, shape: tuple[int, ...]) -> RowScales:
            return RowScales(rule.rows(tensor, config, (*shape, 1)), tensors.of(tensor))

        return tuple(
            replace(rule, target=part_of(rule.target, name), transform=make)
            for name, make in ((WEIGHT, weight), (SCALE, scale))
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
