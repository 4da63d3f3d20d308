"""What the CPU's backends do in C++, as custom calls of XLA: products of matrices, quantised or not, attention over pages.

`library.cc` and the files that it includes are built where they run, with the compiler and XLA's headers that are there; whoever
has built and registered them says so with `calling`. A program that was traced so runs only where they are registered.

The compiler is told to use what the machine has: AVX-512 (BF16, and VNNI for int8) or AVX2 on x86-64, elsewhere vectors of four.
AMX is not used.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

SOURCE = Path(__file__).parent / "library.cc"
PRODUCT, SCALED_PRODUCT, GROUPED_PRODUCT, ATTENTION = SYMBOLS = (
    "product_of_rows",
    "scaled_product_of_rows",
    "products_of_groups",
    "attention_of_rows",
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
