"""What the CPU's backends do in C++, as custom calls of XLA: products of matrices, quantised or not, attention over pages.

    library.cc      the one source that is built, with the headers below; XLA's calls come in here
    product.h       products of rows with a matrix; `kernels.h` has those of a few outputs, `integers.h` those of int8 rows
    scaled.h        the same of matrices of 4 or 8 bits with scales
    fixed.h         those of integers and float4, in fixed point: `fixed_tile.h` of few rows, `fixed_panel.h` of many
    grouped.h       the same by groups of rows, each with a matrix of its own; `panel.h` and `panel_tile.h` have its blocks
    attention.h     attention over pages
    packed.h        products with matrices that were packed as they were loaded; `lane_tile.h` has their tiles
    row_attention.h attention within rows, of the same tiles
    sum_norm.h      the layer norm of a sum
    threads.h       how work is given to XLA's threads

`library.cc` is built where it runs, with the compiler and the headers of XLA that are there; who has built and registered it says
so with `calling`. A program that was traced so runs only where it is registered.

The compiler is told to use what the machine has: AVX-512 (BF16, and VNNI for int8) or AVX2 on x86-64, elsewhere vectors of four.
AMX is not used.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

SOURCE = Path(__file__).parent / "library.cc"
PRODUCT, SCALED_PRODUCT, GROUPED_PRODUCT, ATTENTION, PACKED_PRODUCT, ROW_ATTENTION, SUM_NORM = SYMBOLS = (
    "product_of_rows",
    "scaled_product_of_rows",
    "products_of_groups",
    "attention_of_rows",
    "products_of_packed",
    "attention_within_rows",
    "norm_of_sum",
)
"""The library's custom calls."""

_library: ContextVar[str | None] = ContextVar("library", default=None)


@contextmanager
def calling(library: str | None) -> Iterator[None]:
    """What is traced meanwhile in this thread may call the registered library of this identity; None: no library."""
    token = _library.set(library)
    try:
        yield
    finally:
        _library.reset(token)


def registered_name(symbol: str, library: str) -> str:
    """The name by which a library's custom call is registered: that of no other library's."""
    return f"{symbol}_{library}"


def call_name(symbol: str) -> str | None:
    """The name of a custom call that may be called; None: no library may."""
    library = _library.get()
    return None if library is None else registered_name(symbol, library)


NOT_REGISTERED = "no library is registered for it (pallas_kernels.native.calling)"
