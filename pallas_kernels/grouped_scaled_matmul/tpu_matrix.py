"""A group's matrix as it lies in VMEM, of which some outputs at a time become bfloat16."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.grouped_scaled_matmul import tpu_float4
from pallas_kernels.scaled_matmul.dense import floats
from pallas_kernels.scaled_matmul.tpu_numbers import FLOAT4_CHIPS, less, numbers
from pallas_kernels.storage import LANES, SUBLANES
from pallas_kernels.tpu.chip import SIMULATED, Chip

OUTPUTS, OUTPUTS_BY_FLOAT8 = (512,), (1536, 1024, 512)
"""Of a block. Those of float4 on chips with float8 are longer: nothing hides what the end of a block takes."""
COLUMNS, COLUMNS_OF_PAIRS = (256,), (1024, 768, 512, 256)
"""Outputs that are made bfloat16 at once, of numbers of 8 and of 4 bits: these take longer to make than to multiply."""
SUBLANES_OF_GROUPS = 8
"""Groups whose scales are read together where XLA lays groups out next to one another."""
SUBLANES_OF_BYTES = 32
"""The same of scales in bytes, if there are as many."""


@dataclass(frozen=True)
class Kept:
    """How matrices are kept: `count` groups of `group` inputs have scales, and zeros if there are any.

    Those of `together` matrices are read at once: where it is more than one, they lie as `[Q, G, O]`.
    """

    group: int
    count: int
    together: int
    pairs: str
    chip: Chip

    @property
    def turned(self) -> bool:
        return self.together > 1

    def blocks(
        self, factors: Sequence[jax.Array], wide: int
    ) -> tuple[list[jax.Array], tuple[int, int, int], Callable[..., tuple[Any, ...]]]:
        """Scales and zeros as a kernel takes them, their block for `wide` outputs, and where that is by a step's matrix."""

        def of_group(at: Any, number: Any, groups: Any, *rest: Any) -> tuple[Any, ...]:
            return groups[number], 0, at

        def of_neighbours(at: Any, number: Any, groups: Any, *rest: Any) -> tuple[Any, ...]:
            return 0, groups[number] // self.together, at

        if self.turned:
            return [array.swapaxes(0, 1) for array in factors], (self.count, self.together, wide), of_neighbours
        return list(factors), (1, self.count, wide), of_group

    def widen_if_other(
        self, groups: Any, step: jax.Array, weight: Any, factors: Sequence[Any], wide: Sequence[Any]
    ) -> None:
        """Scales and zeros as `columns` needs them, to `wide`, where they are not the last step's."""

        if self._lays(weight):
            self.lay_if_other(groups, step, factors[0], wide[0], self._less(weight), tpu_float4.words)
            return

        @pl.when(self._others(groups, step))
        def _() -> None:
            more = self._less(weight)
            for given, found, factor in zip(factors, wide, (more, 1 / more), strict=False):
                whole = floats(given[...]) * factor
                found[...] = whole if found.dtype == jnp.float32 else tpu_float4.words(whole)

    def lay_if_other(
        self,
        groups: Any,
        step: jax.Array,
        scales: Any,
        laid: Any,
        factor: float,
        form: Callable[[jax.Array], jax.Array] = lambda found: found,
    ) -> None:
        """The `form` of scales times `factor` to `laid [wide / 128, places, 128]`, where they are not the last step's.

        The `together` matrices' of one group of inputs lie one after the other; places behind the last group are 0.
        """
        lanes, used = laid.shape[2], self.count * self.together

        @pl.when(self._others(groups, step))
        def _() -> None:
            for piece in range(laid.shape[0]):
                own = form(floats(scales[:, :, piece * lanes : (piece + 1) * lanes]) * factor)
                laid[piece, :used, :] = own.reshape(used, lanes)
                if used < laid.shape[1]:
                    laid[piece, used:, :] = jnp.zeros((laid.shape[1] - used, lanes), laid.dtype)

    def of_groups(self, laid: Any, piece: Any, matrix: Any, first: int) -> jax.Array:
        """Of what `lay_if_other` has laid, eight groups of inputs of a matrix, from the `first` on: `[8, 128]`."""
        return laid[piece, pl.ds(self._place(matrix, first), SUBLANES, stride=self.together), :]

    def _of_group(self, laid: Any, own: Any, matrix: Any, number: int) -> jax.Array:
        """The same of one group for outputs `own`, eight times: `[8, columns]`. Loads spread it, which costs no arithmetic."""
        place, lanes = self._place(matrix, number), laid.shape[2]
        pieces = [own.start // lanes + at for at in range(own.size // lanes)]
        # Strides are of whole registers, and the interpreter knows none of 0.
        if lanes < LANES or self.chip.name == SIMULATED:
            rows = [jnp.broadcast_to(laid[piece, pl.ds(place, 1), :], (SUBLANES, lanes)) for piece in pieces]
        else:
            rows = [laid[piece, pl.ds(place, SUBLANES, stride=0), :] for piece in pieces]
        return jnp.concatenate(rows, axis=1)

    def _place(self, matrix: Any, group: int) -> Any:
        """Where a matrix's scales of a group of inputs are laid."""
        return group * self.together + matrix % self.together

    def _lays(self, weight: Any) -> bool:
        """Whether its scales are laid for `columns`."""
        return self.count > 1 and taken_apart(weight, self.pairs, self.chip)

    def _others(self, groups: Any, step: jax.Array) -> jax.Array:
        """Whether scales that are read together are not those of the step before."""
        before = groups[jnp.maximum(step - 1, 0)]
        return (step == 0) | (groups[step] // self.together != before // self.together)

    def columns(self, weight: Any, wide: Sequence[Any], matrix: Any, own: Any) -> tuple[jax.Array, jax.Array | None]:
        """Outputs `own` of matrix number `matrix` as bfloat16 `[I, columns]`, and what multiplies its products, if anything does.

        `wide` are the references that `widen_if_other` has filled.
        """
        scales, *zeros = wide

        def row(kept: Any, number: int) -> jax.Array:
            """Those of one group of inputs, `[1, columns]`."""
            if self.turned:
                return kept[number, pl.ds(matrix % self.together, 1), own]
            return kept[0, pl.ds(number, 1), own]

        def parts() -> Iterator[jax.Array]:
            """The matrix's rows, group by group."""
            found = numbers(weight[0, :, own], pairs=self.pairs, chip=self.chip)
            for number in range(self.count):
                part = found[number * self.group : (number + 1) * self.group]
                for kept in zeros:
                    part -= tpu_float4.spread(row(kept, number), len(part))
                yield part if self.count == 1 else part * tpu_float4.spread(row(scales, number), len(part))

        if taken_apart(weight, self.pairs, self.chip):
            of_group = None if self.count == 1 else functools.partial(self._of_group, scales, own, matrix)
            made = tpu_float4.matrix(weight[0, :, own], of_group, self.group, self.chip)
        else:
            made = list(parts())
        whole = made[0] if len(made) == 1 else jnp.concatenate(made, axis=0)
        return whole, row(scales, 0) if self.count == 1 else None

    def scratch(self, weight: Any, shape: tuple[int, int, int], factors: int) -> list[Any]:
        """`wide`: one scale of an output multiplies products, in float32; of others there are words."""
        if self._lays(weight):
            lanes = min(LANES, shape[2])
            return [pltpu.VMEM((shape[2] // lanes, shape[0] * shape[1], lanes), jnp.int32)]
        of_scales = jnp.float32 if self.count == 1 else jnp.int32
        return [pltpu.VMEM(shape, dtype) for dtype in (of_scales, jnp.int32)[:factors]]

    def _less(self, weight: Any) -> float:
        if taken_apart(weight, self.pairs, self.chip):
            return tpu_float4.less(self.chip)
        return less(weight[0], self.chip)


def outputs_of_block(weights: Any, pairs: str, chip: Chip) -> int:
    """Of matrices `[G, I, O]`: as many as leave the least of the last block empty."""
    by_float8 = taken_apart(weights, pairs, chip) and chip.name in tpu_float4.FLOAT8_CHIPS
    outputs = weights.shape[2]
    fitting = [size for size in (OUTPUTS_BY_FLOAT8 if by_float8 else OUTPUTS) if size <= outputs]
    return min(fitting, key=lambda size: -outputs % size, default=outputs // LANES * LANES or outputs)


def columns_at_once(weights: Any, outputs: int) -> int:
    """How many of a block's outputs are made bfloat16 at once."""
    sizes = COLUMNS_OF_PAIRS if weights.dtype == jnp.uint8 else COLUMNS
    return next(size for size in (*sizes, min(LANES, outputs)) if outputs % size == 0)


def each_columns(weights: Any, outputs: int) -> Callable[[Callable[[Any], None]], None]:
    """Calls with slices of so many outputs, one after the other."""
    columns = columns_at_once(weights, outputs)

    def call(function: Callable[[Any], None]) -> None:
        @pl.loop(0, outputs // columns)
        def _(at: jax.Array) -> None:
            function(pl.ds(pl.multiple_of(at * columns, min(LANES, columns)), columns))

    return call


def taken_apart(weights: Any, pairs: str, chip: Chip) -> bool:
    """Whether inputs are in the order of `tpu_float4`."""
    return weights.dtype == jnp.uint8 and pairs == "float4_e2m1fn" and chip.name not in FLOAT4_CHIPS


def read_together(scales: Any) -> int:
    """Matrices whose scales are read at once; 1: each one's by themselves.

    XLA lays scales `[G, Q, O]` out as `[Q, G, O]` where `Q` would leave sublanes empty. Any other order would be a copy.
    """
    matrices, count, _ = scales.shape
    if count % SUBLANES_OF_GROUPS == 0 or matrices % SUBLANES_OF_GROUPS:
        return 1
    return SUBLANES_OF_GROUPS if scales.dtype.itemsize > 1 else min(SUBLANES_OF_BYTES, matrices)


def factor_bytes(scales: Any, zeros: Any, wide: int) -> int:
    """VMEM that scales and zeros of `wide` outputs take: two blocks, one being copied while the other is in use, and words."""
    numbers = read_together(scales) * scales.shape[1] * wide
    return sum(numbers * (2 * each.dtype.itemsize + 4) for each in (scales, zeros) if each is not None)
