"""Blocks of rows of one group, each with one matrix, which is made dense when its block comes.

What is kept of experts that no row goes to is not read. A block is as long as a matrix unit is wide.
"""

from __future__ import annotations

import functools
from typing import Any

from pallas_kernels.grouped_scaled_matmul.blocks import multiply_scaled_blocks

BLOCK_ROWS = 128


def supports(*args: Any, **options: Any) -> str | None:
    """None: it is made of plain products."""
    return None


grouped_scaled_matmul = functools.partial(multiply_scaled_blocks, block_rows=BLOCK_ROWS)
"""See the op's contract."""
