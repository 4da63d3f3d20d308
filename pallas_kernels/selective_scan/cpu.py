"""The scan on a CPU: as in plain XLA, but for rows of one token, which go one after the other (`gated_delta/cpu.py` says why).

Milliseconds of a layer of 128 heads of 64, states of 128, as there: 1.0 for a row, 9.4 for 8, 20 for 32; all at once 4.6, 29, 99.
"""

from __future__ import annotations

import jax

from pallas_kernels.recurrent_rows.rows import Rows, row_by_row
from pallas_kernels.selective_scan.reference import one_token
from pallas_kernels.selective_scan.reference import supports as supports
from pallas_kernels.selective_scan.xla import CHUNK, chunk


def selective_scan(
    x: jax.Array,
    steps: jax.Array,
    rates: jax.Array,
    inward: jax.Array,
    outward: jax.Array,
    states: jax.Array,
    rows: Rows,
    *,
    precision: jax.lax.Precision,
) -> tuple[jax.Array, jax.Array]:
    """See the op's contract. Memory: a row's state, and of a chunk as in plain XLA."""
    places = (x, steps, inward, outward)
    return row_by_row(one_token(rates), chunk(rates, precision), places, states, rows, size=CHUNK)
