"""Matrices as they are kept coded, made while weights are loaded, by a library without calls of XLA (`native/coder.cc`)."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pallas_kernels.coded_matmul import HEAD, coded_shape

SOURCE, FUNCTION = "coder.cc", "code_rows"

Coder = Callable[[NDArray[np.uint16], NDArray[np.uint16], int], None]
"""`(rows [R, I], coded [O, I + HEAD], first)`: bits of bfloat16 become rows of `coded` from `first` on, in any thread."""


def coder_of(symbols: ctypes.CDLL) -> Coder:
    """That of a library that `SOURCE` became."""
    function: Any = getattr(symbols, FUNCTION)
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, *(ctypes.c_int64,) * 4]
    function.restype = None

    def code(rows: NDArray[np.uint16], coded: NDArray[np.uint16], first: int) -> None:
        count, inputs = rows.shape
        outputs = len(coded)
        fits = rows.dtype == coded.dtype == np.uint16 and coded.shape == coded_shape(outputs, inputs)
        if not fits or not 0 <= first <= first + count <= outputs:
            raise ValueError(
                f"{count} rows of {inputs} do not fit from {first} on into {coded.dtype}{list(coded.shape)}"
            )
        if not (rows.flags.c_contiguous and coded.flags.c_contiguous and coded.flags.writeable):
            raise ValueError("rows and what they become must lie one behind the other")
        function(rows.ctypes.data, coded.ctypes.data, outputs, inputs, first, first + count)

    return code


_obtain: Callable[[], Coder] | None = None


def code_by(obtain: Callable[[], Coder]) -> None:
    """Have matrices of this process coded by what `obtain` gives when it is first asked."""
    global _obtain
    _obtain = cache(obtain)


def code(rows: NDArray[np.uint16], coded: NDArray[np.uint16], first: int) -> None:
    """As a `Coder`, by what was said.

    Raises:
        RuntimeError: nothing was said.
        ValueError: the arrays do not fit.
    """
    if _obtain is None:
        raise RuntimeError("no library codes matrices in this process; say which one does (code_by)")
    _obtain()(rows, coded, first)


def plain_shape(shape: tuple[int, ...]) -> tuple[int, int] | None:
    """`[O, I]` of what is coded in `shape`; None: nothing is."""
    plain = (shape[0], shape[1] - HEAD) if len(shape) == 2 else None
    return plain if plain is not None and coded_shape(*plain) == shape else None
