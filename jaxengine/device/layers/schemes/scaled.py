"""Matrices of 4 or 8 bits a number with a scale for each group of inputs, and products with activations as they are.

What most quantised checkpoints are, whatever they call it; int4 and fp8 are made while a plain one is loaded.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike

from jaxengine.device.layers.exchange import scatter_sum
from jaxengine.device.layers.schemes import WEIGHT, KeptMatrix, part_of
from jaxengine.device.layers.schemes.rounding import (
    GroupScales,
    OutputFactors,
    PackedLines,
    Paired,
    Rounded,
    TensorsFound,
    group_scales,
    paired,
)
from jaxengine.device.weights.formats import Numbers
from jaxengine.device.weights.rules import Array, KvHeads, Made, Rule, Transform, Turned
from jaxengine.errors import ConfigError
from pallas_kernels import grouped_scaled_matmul, scaled_matmul, scaled_matmul_each
from pallas_kernels.scaled_matmul import PAIRS
from pallas_kernels.scaled_matmul.dense import dense_rows
from pallas_kernels.scaled_matmul.packed import packed, packed_shape, plain_shape

if TYPE_CHECKING:
    from jaxengine.device.layers.context import ModelContext

SCALE, ZERO, TENSOR_SCALE, ORDER = "scale", "zero", "tensor_scale", "order"


@dataclass(frozen=True, kw_only=True)
class Scaled(Numbers):
    """A `Scheme`: `weight [out, in]` of type `dtype` and `scale [Q, out]` for `Q` groups of `group` inputs (None: one of all).

    Two outputs of 4 bits are one byte: `weight` is uint8 `[out / 2, in]`; of experts two inputs are, `[count, in / 2, out]`. With
    `zeros` there is `zero [Q, out]`, which number is none; with `ordered`, `order [in]`: which input each column is; with
    `tensor_scale` a factor `[1]` of all products in float32, so that scales of float8 need no more than bfloat16 to be exact.
    With `byte_scales` that is `[out]`, scales are uint8 and zeros sixteenths in int8. The product is near
    `x[order] @ ((weight - zero) * scale).T * tensor_scale`, with `x` and the matrix in the model's dtype, or with `round_rows`
    `x` in float8 where that is faster.
    """

    def parameters(
        self, shape: tuple[int, int], axes: tuple[str, str], context: ModelContext
    ) -> Mapping[str, nnx.Param[jax.Array]]:
        outputs, inputs = shape
        count = -(-inputs // self._group(inputs))
        # All devices have the scales of all groups: a group may lie on two of them.
        parameters = self._parameters(shape, axes, (count, outputs), ("groups", axes[0]), context)
        if self.ordered:
            parameters[ORDER] = context.parameter((inputs,), ("groups",), dtype=jnp.int32)
        if self._has_factor:
            of_factor = ((outputs,), (axes[0],)) if self.byte_scales else ((1,), ("groups",))
            parameters[TENSOR_SCALE] = context.parameter(*of_factor, dtype=jnp.float32)
        return parameters

    def packed(self, weight: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        """The numbers of a matrix that is multiplied by a CPU's library, as that reads them best, if they can lie so.

        Whatever takes numbers of 4 bits here takes them so, too; matrices of groups stay as they are.
        """
        if not self.paired or weight.ndim > 2:
            return weight
        shape = packed_shape(weight.shape, self._group(weight.shape[1]))
        return weight if shape is None else jax.ShapeDtypeStruct(shape, weight.dtype, sharding=weight.sharding)

    def multiply(
        self, x: jax.Array, matrix: KeptMatrix, *, dtype: DTypeLike, used: jax.Array | None = None
    ) -> jax.Array:
        return self._multiply(x, matrix, dtype=dtype, used=used)

    def multiply_parts(self, x: jax.Array, matrix: KeptMatrix, *, dtype: DTypeLike) -> jax.Array | None:
        return self._multiply(x, matrix, dtype=dtype, apart=True)

    def _multiply(
        self,
        x: jax.Array,
        matrix: KeptMatrix,
        *,
        dtype: DTypeLike,
        used: jax.Array | None = None,
        apart: bool = False,
    ) -> jax.Array:
        """The product, or `apart` what each device adds to it."""
        parameters, axes, context = matrix.arrays, matrix.axes, matrix.context
        if self.ordered:
            x = jnp.take(x, parameters[ORDER], axis=-1)
        layout, inputs = context.layout, x.shape[-1]
        devices, group = layout.shards(axes[1]), self._group(inputs)
        of_groups = [parameters[name] for name in (SCALE, ZERO) if name in parameters]
        count = len(of_groups[0])
        if devices > 1 and count > 1 and inputs // devices % group:  # a group that would lie on two devices is cut
            whole, group = group, math.gcd(group, inputs // devices)
            of_groups = [jnp.repeat(array, whole // group, axis=0)[: inputs // group] for array in of_groups]
        across = layout.across(axes[1]) if devices > 1 else ()
        takes: tuple[str, ...] = ("tokens",) * (x.ndim - 1)
        gives = takes
        if x.ndim == 2 and not apart:
            takes, gives = ((of,) for of in layout.rows_of_product(len(x), axes, platform=context.platform))

        # A factor is multiplied before results are rounded; what devices send each other is rounded as it is made.
        result = jnp.float32 if apart or (self._has_factor and not across) else dtype

        def product(
            x: jax.Array,
            weight: jax.Array,
            scales: jax.Array,
            zeros: jax.Array | None = None,
            factors: jax.Array | None = None,
        ) -> jax.Array:
            own = scaled_matmul(
                x,
                weight,
                scales,
                zeros,
                factors,
                group=min(group, x.shape[-1]),
                used=None if layout.parallel else used,
                result=result,
                **self._options(context),
            )
            if apart:
                return own[None]
            if across and gives != takes:
                return scatter_sum(own, across)
            return jax.lax.psum(own, across) if across else own

        if not layout.parallel:
            beside = parameters.get(ZERO), parameters.get(TENSOR_SCALE)
            return product(x, parameters[WEIGHT], parameters[SCALE], *beside).astype(dtype)
        # A kernel is no product that the compiler would cut by itself.
        group_axis = axes[1] if count > 1 else "groups"
        on_devices = layout.per_device(
            product,
            inputs=((*takes, axes[1]), axes, *[(group_axis, axes[0])] * len(of_groups)),
            outputs=(axes[1], *gives, axes[0]) if apart else (*gives, axes[0]),
        )
        found: jax.Array = on_devices(x, parameters[WEIGHT], *of_groups)
        return (found * parameters[TENSOR_SCALE] if self._has_factor else found).astype(dtype)

    def multiply_each(
        self, x: jax.Array, matrices: Sequence[KeptMatrix], *, dtype: DTypeLike, used: jax.Array | None = None
    ) -> tuple[jax.Array, ...] | None:
        if self.ordered:  # each has an order of its own
            return None
        arrays = [matrix.arrays for matrix in matrices]
        products = scaled_matmul_each(
            x,
            [each[WEIGHT] for each in arrays],
            [each[SCALE] for each in arrays],
            [each.get(ZERO) for each in arrays],
            [each.get(TENSOR_SCALE) for each in arrays],
            group=self._group(x.shape[-1]),
            used=used,
            result=dtype,
            **self._options(matrices[0].context),
        )
        return tuple(product.astype(dtype) for product in products)

    def rows(self, numbers: jax.Array, parameters: Mapping[str, jax.Array]) -> jax.Array:
        found = dense_rows(
            numbers,
            parameters[WEIGHT],
            parameters[SCALE],
            parameters.get(ZERO),
            group=self._group(plain_shape(parameters[WEIGHT].shape)[1]),
            pairs=self.dtype,
        )
        if not self._has_factor:
            return found
        factors = parameters[TENSOR_SCALE]
        return found * (jnp.take(factors, numbers, mode="clip")[:, None] if self.byte_scales else factors)

    def group_parameters(
        self, shape: tuple[int, int, int], axes: tuple[str, str, str], context: ModelContext
    ) -> Mapping[str, nnx.Param[jax.Array]]:
        if self.ordered:
            raise ConfigError(
                f"experts in {self.dtype} with activation order (desc_act, actorder) are not built; "
                "use a checkpoint without it, or the bfloat16 one with quantization='int4', 'int8' or 'fp8'"
            )
        matrices, inputs, outputs = shape
        # Each device has the scales of its own inputs: where a group would lie on two, it is cut into smaller ones.
        devices = context.layout.shards(axes[1])
        group = self._group(inputs) if devices == 1 else math.gcd(self._group(inputs), inputs // devices)
        of_groups = (matrices, -(-inputs // group), outputs)
        parameters = self._parameters(shape, axes, of_groups, axes, context)
        if self._has_factor:
            own = (outputs, axes[2]) if self.byte_scales else (1, "groups")
            parameters[TENSOR_SCALE] = context.parameter((matrices, own[0]), (axes[0], own[1]), dtype=jnp.float32)
        return parameters

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
        inputs, count = x.shape[1], parameters[SCALE].shape[1]
        whole = -(-inputs // self._group(inputs)) == count
        products = grouped_scaled_matmul(
            x,
            parameters[WEIGHT],
            sizes,
            parameters[SCALE],
            parameters.get(ZERO),
            group=self._group(inputs) if whole else inputs // count,
            compute=context.dtype,
            **self._pairs,
            rows=rows,
            precision=context.precision,
            dtype=jnp.float32 if self._has_factor else context.activation_dtype,
            platform=context.platform,
        )
        if not self._has_factor:
            return products
        rows_before = jnp.arange(len(products), dtype=jnp.int32)[:, None]
        group_of_row = (rows_before >= jnp.cumsum(sizes)[None]).sum(axis=1)
        factors = jnp.take(parameters[TENSOR_SCALE], group_of_row, axis=0, mode="clip")
        return (products * factors).astype(context.activation_dtype)

    def rules(self, rule: Rule) -> tuple[Rule, ...]:
        tensors = TensorsFound()

        def weight(matrix: Array, config: KvHeads, shape: tuple[int, ...]) -> Made:
            rounded = Rounded(
                rule.rows(matrix, config, self._plain(shape, rule)), self, group_scales, tensors.of(matrix)
            )
            made: Made = Turned(rounded) if rule.stacked else rounded
            made = Paired(made, rounded.dtype) if self.paired else made
            return PackedLines(made) if len(shape) == 4 else made

        def of_groups(matrix: Array, config: KvHeads, shape: tuple[int, ...], *, zeros: bool = False) -> Made:
            rows = rule.rows(matrix, config, shape[::-1])
            return Turned(GroupScales(rows, self, shape[0], tensors.of(matrix), zeros=zeros))

        def order(matrix: Array, config: KvHeads, shape: tuple[int, ...]) -> Array:
            return np.arange(shape[0], dtype=np.int32)

        def factor(matrix: Array, config: KvHeads, shape: tuple[int, ...]) -> Array | Made:
            if not self.byte_scales:
                return np.ones(shape, np.float32)
            return OutputFactors(rule.rows(matrix, config, (*shape, 1)), self, tensors.of(matrix))

        made: dict[str, Transform] = {WEIGHT: weight, SCALE: of_groups}
        if self.zeros:
            made[ZERO] = functools.partial(of_groups, zeros=True)
        if self.ordered:
            made[ORDER] = order
        if self._has_factor:
            made[TENSOR_SCALE] = factor
        return tuple(
            replace(rule, target=part_of(rule.target, name), transform=transform) for name, transform in made.items()
        )

    def stored_rules(self, rule: Rule) -> tuple[Rule, ...]:
        def weight(numbers: Array, config: KvHeads, shape: tuple[int, ...]) -> Array:
            rows = rule.rows(numbers, config, self._plain(shape, rule))
            kept = rows.T if rule.stacked else rows
            kept = paired(kept) if self.paired else kept
            return packed(kept) if len(shape) == 4 else kept

        def of_groups(tensor: Array, config: KvHeads, shape: tuple[int, ...]) -> Array:
            rows = rule.rows(tensor, config, shape[::-1]).T
            # as many as there are devices, or groups that these have cut
            return rows if len(rows) == shape[0] else np.repeat(rows, -(-shape[0] // len(rows)), axis=0)

        made: dict[str, Transform | None] = {SCALE: of_groups}
        if self.zeros:
            made[ZERO] = of_groups
        if self.ordered:
            made[ORDER] = None
        if self.tensor_scale:
            made[TENSOR_SCALE] = None
        parts = (rule.of_part(part_of(rule.target, name), name, transform) for name, transform in made.items())
        return replace(rule, transform=weight), *parts

    def _plain(self, shape: tuple[int, ...], rule: Rule) -> tuple[int, ...]:
        """The plain matrix's shape, `[out, in]`, from that of what is kept."""
        shape = plain_shape(shape)
        whole = (2 * shape[0] if self.paired else shape[0]), shape[1]
        return whole[::-1] if rule.stacked else whole

    def _parameters(
        self,
        shape: tuple[int, ...],
        axes: tuple[str, ...],
        of_groups: tuple[int, ...],
        group_axes: tuple[str, ...],
        context: ModelContext,
    ) -> dict[str, nnx.Param[jax.Array]]:
        # One scale for all of a row is a factor of results, which are float32; those of groups are of the matrix.
        narrow = of_groups[-2] > 1 and context.dtype == jnp.bfloat16
        dtype = jnp.uint8 if self.byte_scales else jnp.bfloat16 if narrow else jnp.float32
        if self.paired:
            shape = _halved(shape, axes, context, axis=0 if len(shape) == 2 else 1)
        parameters = {
            WEIGHT: context.parameter(shape, axes, dtype=jnp.uint8 if self.paired else jnp.dtype(self.dtype)),
            SCALE: context.parameter(of_groups, group_axes, dtype=dtype),
        }
        if self.zeros:  # bfloat16 holds them all: integers to 256
            kept = jnp.int8 if self.byte_scales else dtype
            parameters[ZERO] = context.parameter(of_groups, group_axes, dtype=kept)
        return parameters

    @property
    def paired(self) -> bool:
        """Whether two numbers are one byte."""
        return self.dtype in PAIRS

    def _options(self, context: ModelContext) -> dict[str, Any]:
        """Of a product."""
        return {
            "compute": context.dtype,
            **self._pairs,
            "round_rows": self.round_rows,
            "precision": context.precision,
            "platform": context.platform,
        }

    @property
    def _has_factor(self) -> bool:
        return self.tensor_scale or self.byte_scales

    @property
    def _pairs(self) -> dict[str, str]:
        return {"pairs": self.dtype} if self.paired else {}

    def _group(self, inputs: int) -> int:
        return inputs if self.group is None else min(self.group, inputs)


INT4 = Scaled(dtype="int4", group=128, zeros=True)
INT4_G32 = Scaled(dtype="int4", group=32, zeros=True, byte_scales=True)
FP8 = Scaled(dtype="float8_e4m3fn")


def _halved(shape: tuple[int, ...], axes: tuple[str, ...], context: ModelContext, *, axis: int) -> tuple[int, ...]:
    """Of numbers two to a byte along `axis`.

    Raises:
        ConfigError: a device would have half a byte.
    """
    devices = context.layout.shards(axes[axis])
    if shape[axis] % (2 * devices):
        raise ConfigError(
            f"matrices of 4 bits have two {'outputs' if axis == 0 else 'inputs'} to a byte, and of {shape[axis]} of them "
            f"{devices} devices cannot have the same number of pairs; use fewer devices, or 8 bits (quantization='int8', "
            "and lm_head_dtype='int8' for the vocabulary's)"
        )
    return tuple(size // 2 if number == axis else size for number, size in enumerate(shape))
