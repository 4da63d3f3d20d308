"""Matrices rounded to few bits while a plain checkpoint loads, part by part, in NumPy: numbers, and the scales of groups.

All are `weights.rules.Made`, of a matrix `[out, in]`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from jaxengine.device.weights.formats import Numbers
from jaxengine.device.weights.rules import Array, Made
from pallas_kernels.scaled_matmul.packed import INPUTS, LINES, packed, packed_shape

Scales = tuple[NDArray[np.float32], NDArray[np.float32]]
"""Scales and zeros of groups, `[out, Q]` each."""

CHUNK = 1 << 16
"""Numbers that are rounded at once: what they become in float32 stays in a processor's cache, and memory is not held for it."""
WIDTHS = (0, 1, 2)
"""Steps by which the range of integers is at first wider than what is between the outermost numbers (`_fitted`)."""
ZERO_STEP = np.float32(1 / 16)
"""Of zeros that are kept in bytes (`pallas_kernels.scaled_matmul`)."""
FITS = 2
"""How often integers and scales are then chosen by each other; more make the error smaller by a hundredth."""


class RowsFound(dict[tuple[int, int], Scales]):
    """Scales and zeros of rows of a matrix, found once: devices share rows, and of a matrix several parameters are made."""

    def of(self, matrix: Array, rows: slice, numbers: Numbers, scales_of: Callable[[Array, Numbers], Scales]) -> Scales:
        """What `scales_of` finds of these rows."""
        if (found := self.get((rows.start, rows.stop))) is None:
            found = self[rows.start, rows.stop] = scales_of(matrix[rows], numbers)
        return found


class TensorsFound:
    """What was found of each tensor, as long as it lives: a checkpoint gives another object to who comes back later."""

    def __init__(self) -> None:
        self._of: dict[int, RowsFound] = {}

    def of(self, tensor: Any) -> RowsFound:
        """Of several tensors together nothing is kept."""
        if not isinstance(tensor, np.ndarray):
            return RowsFound()
        if (found := self._of.get(id(tensor))) is None:
            found = self._of[id(tensor)] = RowsFound()
            weakref.finalize(tensor, self._of.pop, id(tensor), None)
        return found


class Rounded:
    """Numbers by the scales that `scales_of` finds of whole rows, or that were `found`."""

    def __init__(
        self,
        matrix: Array,
        numbers: Numbers,
        scales_of: Callable[[Array, Numbers], Scales],
        found: RowsFound | None = None,
    ) -> None:
        self._matrix, self._numbers, self._scales_of = matrix, numbers, scales_of
        self._found = RowsFound() if found is None else found
        self.shape: tuple[int, ...] = matrix.shape
        self.dtype = np.dtype(np.int8 if numbers.dtype.startswith("int") else numbers.dtype)

    def fill(self, out: Array, part: tuple[slice, ...]) -> None:
        """Write the numbers within `part` to `out`."""
        rows, inputs = part
        scales, zeros = self._found.of(self._matrix, rows, self._numbers, self._scales_of)
        matrix = self._matrix[rows, inputs]
        low, high = limits(self._numbers.dtype)
        for chunk in _chunks(matrix):
            wide = matrix[chunk].astype(np.float32)
            wide /= self._of_inputs(_or_one(scales[chunk]), inputs)
            if self._numbers.zeros:
                wide += self._of_inputs(zeros[chunk], inputs)
            if self._numbers.dtype.startswith("int"):
                np.rint(wide, out=wide)
            np.copyto(out[chunk], np.clip(wide, low, high, out=wide).astype(out.dtype), casting="unsafe")

    def _of_inputs(self, of_groups: NDArray[np.float32], inputs: slice) -> NDArray[np.float32]:
        """What groups have `[rows, Q]`, for each of some inputs `[rows, inputs]`; one for all of a row serves as it is."""
        size = self._numbers.group
        if size is None:
            return of_groups
        first = inputs.start // size
        repeated: NDArray[np.float32] = np.repeat(of_groups[:, first : -(-inputs.stop // size)], size, axis=1)
        return repeated[:, inputs.start - first * size : inputs.stop - first * size]


@dataclass(frozen=True, slots=True)
class Paired:
    """Two rows of numbers of 4 bits that are `Made`, to a byte."""

    matrix: Made
    dtype: np.dtype[Any]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.matrix.shape[0] // 2, *self.matrix.shape[1:]

    def fill(self, out: Array, part: tuple[slice, ...]) -> None:
        """Write the bytes within `part` to `out`."""
        rows, columns = part
        rows = slice(2 * rows.start, 2 * rows.stop)
        numbers = np.empty((rows.stop - rows.start, columns.stop - columns.start), self.dtype)
        self.matrix.fill(numbers, (rows, columns))
        for chunk in _chunks(out):
            some = numbers[2 * chunk.start : 2 * chunk.stop]
            if self.dtype == np.int8:
                some += np.int8(8)
            np.copyto(out[chunk], paired(some.view(np.uint8) & np.uint8(15)))


@dataclass(frozen=True, slots=True)
class PackedLines:
    """A matrix of bytes that is `Made`, packed (`pallas_kernels.scaled_matmul.packed`); it is asked for whole."""

    lines: Made

    @property
    def shape(self) -> tuple[int, ...]:
        return packed_shape(self.lines.shape, group=INPUTS) or self.lines.shape

    def fill(self, out: Array, part: tuple[slice, ...]) -> None:
        """Write all bytes to `out`, which is contiguous. They are packed where they lie, a few lines after the other."""
        plain = out.view()
        plain.shape = self.lines.shape  # and no copy
        self.lines.fill(plain, tuple(slice(0, size) for size in plain.shape))
        step = max(1, CHUNK // plain[:LINES].size) * LINES
        for first in range(0, len(plain), step):
            some = plain[first : first + step]
            some[:] = packed(some).reshape(some.shape)


def paired(numbers: Array) -> Array:
    """uint8 `[A, B]`, 4 bits each -> `[A / 2, B]`, as `scaled_matmul` and `grouped_scaled_matmul` take them."""
    bytes_of_two: Array = numbers[1::2] << np.uint8(4)
    bytes_of_two |= numbers[::2]
    return bytes_of_two


class GroupScales:
    """Scales `[out, count]`, or `zeros`, as they are kept; where there are more than groups, each as often as it takes."""

    def __init__(self, matrix: Array, numbers: Numbers, count: int, found: RowsFound, *, zeros: bool = False) -> None:
        self._matrix, self._numbers, self._found, self._zeros = matrix, numbers, found, zeros
        self.shape: tuple[int, ...] = (matrix.shape[0], count)

    def fill(self, out: Array, part: tuple[slice, ...]) -> None:
        """Write what is within `part` to `out`."""
        rows, columns = part
        found = self._found.of(self._matrix, rows, self._numbers, group_scales)[self._zeros]
        if self._numbers.byte_scales:
            found = np.rint(found / (ZERO_STEP if self._zeros else _or_one(output_factors(found)[:, None])))
        np.copyto(out, np.repeat(found, -(-self.shape[1] // found.shape[1]), axis=1)[:, columns], casting="unsafe")


class OutputFactors:
    """What scales that are bytes are multiplied by, `[out]`."""

    def __init__(self, matrix: Array, numbers: Numbers, found: RowsFound) -> None:
        self._matrix, self._numbers, self._found = matrix, numbers, found
        self.shape: tuple[int, ...] = matrix.shape[:1]

    def fill(self, out: Array, part: tuple[slice, ...]) -> None:
        """Write the factors within `part` to `out`."""
        out[:] = output_factors(self._found.of(self._matrix, part[0], self._numbers, group_scales)[0])


class RowScales:
    """One scale `[out]` for each row, its largest magnitude over 127."""

    def __init__(self, matrix: Array, found: RowsFound) -> None:
        self._matrix, self._found = matrix, found
        self.shape: tuple[int, ...] = matrix.shape[:1]

    def fill(self, out: Array, part: tuple[slice, ...]) -> None:
        """Write the scales within `part` to `out`."""
        out[:] = self._found.of(self._matrix, part[0], Numbers(dtype="int8"), row_scales)[0][:, 0]


def row_scales(matrix: Array, numbers: Numbers | None = None) -> Scales:
    """Each row's largest magnitude over 127, `[out, 1]`, and no zeros."""
    scales = np.empty((len(matrix), 1), np.float32)
    for chunk in _chunks(matrix):
        wide = matrix[chunk].astype(np.float32)
        scales[chunk, 0] = np.abs(wide, out=wide).max(axis=1, initial=0) / np.float32(127)
    return scales, np.zeros_like(scales)


def group_scales(matrix: Array, numbers: Numbers) -> Scales:
    """Scales and zeros of groups: of float8 the largest magnitude over its largest number, of integers what `_fitted` finds."""
    outputs, inputs = matrix.shape
    group = numbers.group or inputs
    whole = inputs // group * group
    low, high = limits(numbers.dtype)
    scales = np.zeros((outputs, -(-inputs // group)), np.float32)
    zeros = np.zeros_like(scales)
    for chunk in _chunks(matrix):
        wide = matrix[chunk].astype(np.float32)
        parts = [(slice(0, whole // group), wide[:, :whole].reshape(len(wide), -1, group))] if whole else []
        if whole < inputs:
            parts.append((slice(-1, None), wide[:, None, whole:]))
        for columns, groups in parts:
            if not numbers.dtype.startswith("int"):
                scales[chunk, columns] = np.maximum(-groups.min(axis=2), groups.max(axis=2)) / np.float32(high)
                continue
            found = _fitted(groups, low, high, zeros=numbers.zeros)
            kept = found if numbers.byte_scales else map(_in_bfloat16, found)
            scales[chunk, columns], zeros[chunk, columns] = kept
    return _in_bytes(scales, zeros) if numbers.byte_scales else (scales, zeros)


def _fitted(x: NDArray[np.float32], low: float, high: float, *, zeros: bool) -> Scales:
    """Scales and zeros `[out, Q]` for `x [out, Q, group]` that make the squares of what rounding loses small.

    Rounding to the nearest integers, and the least squares of scale and zero for these integers, in turn: neither makes the sum
    of squares larger. Where it ends depends on where it begins, so it goes on from that of `WIDTHS` that loses least.
    """
    fit, best = _Fit(x, low, high, zeros=zeros), np.full(x.shape[:2], -1, np.float32)
    scale, zero = np.zeros_like(best), np.zeros_like(best)
    for width in WIDTHS:
        *found, explained = fit.step(*fit.outermost(width))
        better = explained > best
        for kept, new in zip((scale, zero, best), (*found, explained), strict=True):
            np.copyto(kept, new, where=better)
    for _ in range(FITS):
        scale, zero, _ = fit.step(scale, zero)
    return scale, zero


class _Fit:
    """What is the same in all steps for numbers `x [out, Q, group]`."""

    def __init__(self, x: NDArray[np.float32], low: float, high: float, *, zeros: bool) -> None:
        self._x, self._low, self._high, self._zeros = x, low, high, zeros
        self._least, self._greatest = np.minimum(x.min(axis=2), 0), np.maximum(x.max(axis=2), 0)
        self._sum_x, self._integers = x.sum(axis=2), np.empty_like(x)

    def outermost(self, width: float) -> Scales:
        """Those by which the outermost numbers are `width` steps apart more than the integers are: some of them are cut off.

        Without zeros the number of the largest magnitude is at the lowest integer, of which there is one more than above zero:
        its scale may be below zero.
        """
        zero = np.zeros_like(self._least)
        if not self._zeros:
            largest = np.where(-self._least > self._greatest, self._least, self._greatest)
            return largest / np.float32(self._low - width / 2), zero
        scale = (self._greatest - self._least) / np.float32(self._high - self._low + width)
        np.divide(-(self._least + self._greatest), 2 * scale, out=zero, where=scale > 0)
        zero += np.float32((self._low + self._high) / 2)
        return scale, zero

    def step(self, scale: NDArray[np.float32], zero: NDArray[np.float32]) -> tuple[NDArray[np.float32], ...]:
        """Scales and zeros for the integers that are nearest by those given, and what they explain of the squares of `x`."""
        integers, count = self._integers, self._x.shape[2]
        np.multiply(self._x, _inverse(scale)[..., None], out=integers)
        if self._zeros:
            integers += zero[..., None]
        np.clip(np.rint(integers, out=integers), self._low, self._high, out=integers)
        squares, products = (np.einsum("oqi,oqi->oq", integers, other) for other in (integers, self._x))
        if self._zeros:  # the squares of what is off the means
            sum_n = np.einsum("oqi->oq", integers)  # exact, and in half the time of `sum`
            squares = count * squares - sum_n * sum_n
            products = count * products - sum_n * self._sum_x
        some = squares > 0
        scale = np.divide(products, squares, out=scale.copy(), where=some)
        if self._zeros:
            zero = np.divide(sum_n - self._sum_x * _inverse(scale), count, out=zero.copy(), where=some)
        return scale, zero, np.divide(products * products, squares, out=np.zeros_like(scale), where=some)


def _inverse(scale: NDArray[np.float32]) -> NDArray[np.float32]:
    """Of zero it is 0."""
    return np.divide(1, scale, out=np.zeros_like(scale), where=scale != 0)


def _in_bfloat16(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """As models in bfloat16 keep them: integers are chosen by what they are multiplied with."""
    return values.astype(ml_dtypes.bfloat16).astype(np.float32)


def _in_bytes(scales: NDArray[np.float32], zeros: NDArray[np.float32]) -> Scales:
    """As bytes keep them. No scale but zero becomes zero: what it would lose is more than a step that is too wide does."""
    factors = output_factors(scales)[:, None]
    kept = np.maximum(np.rint(scales / _or_one(factors)), scales > 0) * factors
    return kept, np.clip(np.rint(zeros / ZERO_STEP), -128, 127) * ZERO_STEP


def output_factors(scales: NDArray[np.float32]) -> NDArray[np.float32]:
    """The largest of an output's scales `[out, Q]` over 255, `[out]`."""
    return scales.max(axis=1, initial=0) / np.float32(255)


def _or_one(divisors: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.where(divisors == 0, np.float32(1), divisors)


def limits(dtype: str) -> tuple[float, float]:
    """The lowest and the highest number of a type."""
    if dtype.startswith("int"):
        bits = int(dtype.removeprefix("int"))
        return -(2.0 ** (bits - 1)), 2.0 ** (bits - 1) - 1
    most = float(ml_dtypes.finfo(np.dtype(dtype)).max)
    return -most, most


def _chunks(matrix: Any) -> list[slice]:
    """Rows that are worked on at once."""
    count = max(1, CHUNK // max(1, matrix.shape[1]))
    return [slice(first, first + count) for first in range(0, len(matrix), count)]
