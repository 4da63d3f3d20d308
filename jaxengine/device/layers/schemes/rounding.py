"""Matrices rounded to few bits while a plain checkpoint loads, part by part, in NumPy: numbers, and the scales of groups.

All are `weights.rules.Made`, of a matrix `[out, in]`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from jaxengine.device.weights.formats import Numbers
from jaxengine.device.weights.rules import Array, Made

Scales = tuple[NDArray[np.float32], NDArray[np.float32]]
"""Scales and zeros of groups, `[out, Q]` each."""

CHUNK = 1 << 16
"""Numbers that are rounded at once: what they become in float32 stays in a processor's cache, and memory is not held for it."""


class Rounded:
    """Numbers by the scales that `scales_of` finds of whole rows."""

    def __init__(self, matrix: Array, numbers: Numbers, scales_of: Callable[[Array, Numbers], Scales]) -> None:
        self._matrix, self._numbers = matrix, numbers
        self.shape: tuple[int, ...] = matrix.shape
        self.dtype = np.dtype(np.int8 if numbers.dtype.startswith("int") else numbers.dtype)
        # devices that share rows ask for the same ones, one after the other
        self._scales = functools.lru_cache(maxsize=1)(lambda rows: scales_of(self._matrix[slice(*rows)], numbers))

    def fill(self, out: Array, part: tuple[slice, ...]) -> None:
        """Write the numbers within `part` to `out`."""
        rows, inputs = part
        scales, zeros = self._scales((rows.start, rows.stop))
        matrix, size = self._matrix[rows, inputs], self._numbers.group
        # one for all of a row serves each of its numbers
        group: Any = slice(None) if size is None else np.arange(inputs.start, inputs.stop) // size
        low, high = limits(self._numbers.dtype)
        for chunk in _chunks(matrix):
            wide = matrix[chunk].astype(np.float32)
            divisors = np.where(scales[chunk] == 0, np.float32(1), scales[chunk])
            wide /= divisors[:, group]
            if self._numbers.zeros:
                wide += zeros[chunk][:, group]
            if self._numbers.dtype.startswith("int"):
                np.rint(wide, out=wide)
            np.copyto(out[chunk], np.clip(wide, low, high, out=wide).astype(out.dtype), casting="unsafe")


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
        if self.dtype == np.int8:
            numbers += np.int8(8)
        np.copyto(out, paired(numbers.view(np.uint8) & np.uint8(15)))


def paired(numbers: Array) -> Array:
    """uint8 `[A, B]`, 4 bits each -> `[A / 2, B]`, as `scaled_matmul` and `grouped_scaled_matmul` take them."""
    bytes_of_two: Array = numbers[1::2] << np.uint8(4)
    bytes_of_two |= numbers[::2]
    return bytes_of_two


class GroupScales:
    """Scales `[out, count]`, or with `zeros` the zeros; where there are more than groups, each as often as it takes."""

    def __init__(self, matrix: Array, numbers: Numbers, count: int, *, zeros: bool = False) -> None:
        self._matrix, self._numbers, self._zeros = matrix, numbers, zeros
        self.shape: tuple[int, ...] = (matrix.shape[0], count)

    def fill(self, out: Array, part: tuple[slice, ...]) -> None:
        """Write what is within `part` to `out`."""
        rows, columns = part
        found = group_scales(self._matrix[rows], self._numbers)[self._zeros]
        np.copyto(out, np.repeat(found, -(-self.shape[1] // found.shape[1]), axis=1)[:, columns], casting="unsafe")


class RowScales:
    """One scale `[out]` for each row, its largest magnitude over 127."""

    def __init__(self, matrix: Array) -> None:
        self._matrix = matrix
        self.shape: tuple[int, ...] = matrix.shape[:1]

    def fill(self, out: Array, part: tuple[slice, ...]) -> None:
        """Write the scales within `part` to `out`."""
        out[:] = row_scales(self._matrix[part[0]])[0][:, 0]


def row_scales(matrix: Array, numbers: Numbers | None = None) -> Scales:
    """Each row's largest magnitude over 127, `[out, 1]`, and no zeros."""
    scales = np.empty((len(matrix), 1), np.float32)
    for chunk in _chunks(matrix):
        wide = matrix[chunk].astype(np.float32)
        scales[chunk, 0] = np.abs(wide, out=wide).max(axis=1, initial=0) / np.float32(127)
    return scales, np.zeros_like(scales)


def group_scales(matrix: Array, numbers: Numbers) -> Scales:
    """Scales and zeros of groups.

    float8 takes its largest number for the largest magnitude. Integers with zeros take all of theirs for what lies between the
    least and the greatest number, 0 included; without, the number of the largest magnitude becomes the lowest integer, of which
    there is one more than above zero: the scale has its sign turned.
    """
    outputs, inputs = matrix.shape
    group = numbers.group or inputs
    count = -(-inputs // group)
    scales, zeros = np.zeros((outputs, count), np.float32), np.zeros((outputs, count), np.float32)
    starts = np.arange(0, inputs, group)
    low, high = limits(numbers.dtype)
    for chunk in _chunks(matrix):
        wide = matrix[chunk].astype(np.float32)
        least = np.minimum.reduceat(wide, starts, axis=1)
        greatest = np.maximum.reduceat(wide, starts, axis=1)
        if numbers.zeros:
            least, greatest = np.minimum(least, 0), np.maximum(greatest, 0)
            scales[chunk] = (greatest - least) / np.float32(high - low)
            zeros[chunk] = np.rint(low - least / np.where(scales[chunk] == 0, 1, scales[chunk]))
        elif numbers.dtype.startswith("int"):
            scales[chunk] = np.where(-least > greatest, least, greatest) / np.float32(low)
        else:
            scales[chunk] = np.maximum(-least, greatest) / np.float32(high)
    return scales, zeros


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
