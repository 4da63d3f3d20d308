"""Matrices as they are kept coded, made while weights are loaded, by a library without calls of XLA (`native/coder.cc`)."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pallas_kernels.coded_matmul import HEAD, coded_shape

SOURCE = "coder.cc"


class Coder:
    """What a library that `SOURCE` became does, in any thread. Numbers of bfloat16 are given by their bits."""

    def __init__(self, symbols: ctypes.CDLL) -> None:
        self._code: Any = symbols.code_rows
        self._code.argtypes = [ctypes.c_void_p, ctypes.c_void_p, *(ctypes.c_int64,) * 4]
        self._decode: Any = symbols.decode_rows
        self._decode.argtypes = [ctypes.c_void_p, ctypes.c_void_p, *(ctypes.c_int64,) * 2]
        self._code.restype = self._decode.restype = None

    def code(self, rows: NDArray[np.uint16], coded: NDArray[np.uint16], first: int) -> None:
        """Have `rows [R, I]` become those of `coded [O, I + HEAD]` from `first` on.

        Raises:
            ValueError: the arrays do not fit.
        """
        count, inputs = rows.shape
        outputs = len(coded)
        fits = rows.dtype == coded.dtype == np.uint16 and coded.shape == coded_shape(outputs, inputs)
        if not fits or not 0 <= first <= first + count <= outputs:
            raise ValueError(
                f"{count} rows of {inputs} do not fit from {first} on into {coded.dtype}{list(coded.shape)}"
            )
        if not (rows.flags.c_contiguous and coded.flags.c_contiguous and coded.flags.writeable):
            raise ValueError("rows and what they become must lie one behind the other")
        self._code(rows.ctypes.data, coded.ctypes.data, outputs, inputs, first, first + count)

    def decode(self, coded: NDArray[np.uint16]) -> NDArray[np.uint16]:
        """What `coded` was made of, `[O, I]`.

        Raises:
            ValueError: nothing is coded so.
        """
        shape = plain_shape(coded.shape)
        if shape is None or coded.dtype != np.uint16 or not coded.flags.c_contiguous:
            raise ValueError(f"no matrix is coded as {coded.dtype}{list(coded.shape)}")
        rows = np.empty(shape, np.uint16)
        self._decode(coded.ctypes.data, rows.ctypes.data, *shape)
        return rows


_obtain: Callable[[], Coder] | None = None


def code_by(obtain: Callable[[], Coder]) -> None:
    """Have matrices of this process coded by what `obtain` gives when it is first asked."""
    global _obtain
    _obtain = cache(obtain)


def coder() -> Coder:
    """What was said.

    Raises:
        RuntimeError: nothing was.
    """
    if _obtain is None:
        raise RuntimeError("no library codes matrices in this process; say which one does (code_by)")
    return _obtain()


def plain_shape(shape: tuple[int, ...]) -> tuple[int, int] | None:
    """`[O, I]` of what is coded in `shape`; None: nothing is."""
    plain = (shape[0], shape[1] - HEAD) if len(shape) == 2 else None
    return plain if plain is not None and coded_shape(*plain) == shape else None
