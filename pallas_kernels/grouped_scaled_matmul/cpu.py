"""XLA's: as on every platform, in blocks that do not waste a CPU's time on rows that are not there."""

from __future__ import annotations

import functools
from typing import Any

from pallas_kernels.grouped_scaled_matmul.blocks import multiply_scaled_blocks

BLOCK_ROWS = 16


def supports(*args: Any, **options: Any) -> str | None:
    """None: it is made of plain products."""
    return None


grouped_scaled_matmul = functools.partial(multiply_scaled_blocks, block_rows=BLOCK_ROWS)
"""See the op's contract."""
