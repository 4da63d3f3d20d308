"""What the CPU's backends do in C++, as custom calls of XLA: products of matrices, quantised or not, attention over pages.

    decoder.cc      a source that is built, with headers below: products and attention of most models. XLA's calls come in here,
                    and in `rows.cc`, `float32.cc`, `int8.cc`, `scaled.cc`, `grouped.cc` and `encoder.cc`, each a library of
                    its own, which a model that calls it waits for; `product_call.h` and `attention_call.h` have what they share
    product.h       products of rows with a matrix, whose `operands.h` others share: `bfloat16.h`, `floats.h` of
                    `float_tile.h`, and `integers.h` of int8 rows
    scaled.h        the same of matrices of 4 or 8 bits with scales; those of 4 may be packed (`scaled_matmul/packed.py`)
    fixed.h         those of integers, in fixed point: `fixed_tile.h`, `fixed_lanes.h` and `fixed_wide.h` of few
                    rows, `fixed_panel.h` of many
    panel_sums.h    their sums, of integers
    factors.h       scales and zeros of groups as they are kept; `factor_types.h` has what XLA calls their types
    coded.h         products with matrices of bfloat16 kept in 12 bits (`coding.h`), which `decoding.h` reads: `coded_pairs.h`
                    where there are instructions for pairs, else `coded_floats.h`; `coder.cc` makes these, and has no calls
    grouped.h       the same by groups of rows, each with a matrix of its own; `panel.h` and `panel_tile.h` have its blocks
    attention.h     attention over pages; `write_kv.h` what new tokens write there
    packed.h        products with matrices that were packed as they were loaded; `lane_tile.h` has their tiles
    row_attention.h attention within rows, of the same tiles
    softmax.h       what both make of scores
    norms.h         norms of rows: by the root mean square, and the layer norm
    rotate.h        heads turned by the angles of their positions
    threshold.h     from which value on a row weighs enough
    argmax.h        which of a row's values is the largest
    zeros.h         zeros that take no memory before they are asked for
    rows.h          what is done to rows one by one
    threads.h       how work is given to XLA's threads, each on a core of its own (`cores.h`)
    custom_call.h   XLA's calls by its C interface, which compiles faster than XLA's own header

They are built where they run, with the compiler and the headers of XLA that are there; who builds and registers them says so with
`calling`. What was traced so is compiled and loaded only where those that it `calls` are registered.

The compiler is told to use what the machine has: AVX-512 (BF16, and VNNI for int8) or AVX2 on x86-64, elsewhere vectors of four.
AMX is not used.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

FOLDER = Path(__file__).parent
(
    PRODUCT,
    FLOAT32_PRODUCT,
    INT8_PRODUCT,
    SCALED_PRODUCT,
    GROUPED_PRODUCT,
    ATTENTION,
    FLOAT32_ATTENTION,
    WRITE,
    FLOAT32_WRITE,
    PACKED_PRODUCT,
    ROW_ATTENTION,
    RMS_NORM,
    LAYER_NORM,
    ROTATION,
    THRESHOLD,
    ARGMAX,
    COPY,
    ZEROS,
    CODED_PRODUCT,
    CODED_ROWS,
) = (
    "product_of_rows",
    "product_of_float32",
    "product_of_int8",
    "scaled_product_of_rows",
    "products_of_groups",
    "attention_of_rows",
    "attention_of_float32",
    "write_of_tokens",
    "write_of_float32",
    "products_of_packed",
    "attention_within_rows",
    "norm_of_rows",
    "layer_norm_of_rows",
    "rotation_of_heads",
    "threshold_of_rows",
    "argmax_of_rows",
    "copies_of_arrays",
    "zeros_of_array",
    "product_of_coded",
    "rows_of_coded",
)
SOURCES = {
    "decoder.cc": (PRODUCT, CODED_PRODUCT, CODED_ROWS, ATTENTION, WRITE, THRESHOLD, ARGMAX, COPY, ZEROS),
    "rows.cc": (RMS_NORM, LAYER_NORM, ROTATION),
    "float32.cc": (FLOAT32_PRODUCT, FLOAT32_ATTENTION, FLOAT32_WRITE),
    "int8.cc": (INT8_PRODUCT,),
    "scaled.cc": (SCALED_PRODUCT,),
    "grouped.cc": (GROUPED_PRODUCT,),
    "encoder.cc": (PACKED_PRODUCT, ROW_ATTENTION),
}
"""The custom calls of each library, by its source."""
SYMBOLS = tuple(symbol for symbols in SOURCES.values() for symbol in symbols)

OF_LAYER = "of_layer"
"""An attribute of any call within a loop over layers, int64 by argument. Its first argument is then a row of addresses, `uint8
[arrays, 8]`. An argument that has a number here, and not -1, lies at the address of that number, and not where what is given
lies."""

_library: ContextVar[str | None] = ContextVar("library", default=None)


@contextmanager
def calling(library: str | None) -> Iterator[None]:
    """What is traced meanwhile in this thread may call the libraries of this identity; None: none."""
    token = _library.set(library)
    try:
        yield
    finally:
        _library.reset(token)


def registered_name(symbol: str, library: str) -> str:
    """The name by which a custom call is registered: that of no other identity's."""
    return f"{symbol}_{library}"


def calls(program: bytes, library: str) -> tuple[str, ...]:
    """The custom calls of this identity in a program: the text that it was lowered to, or what its executable was written as."""
    return tuple(symbol for symbol in SYMBOLS if registered_name(symbol, library).encode() in program)


def call_name(symbol: str) -> str | None:
    """The name of a custom call that may be called; None: no library may."""
    library = _library.get()
    return None if library is None else registered_name(symbol, library)


NOT_REGISTERED = "no library is registered for it (pallas_kernels.native.calling)"
