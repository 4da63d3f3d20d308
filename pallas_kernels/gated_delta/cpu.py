"""The gated delta rule on a CPU: as in plain XLA, but for rows of one token, which go one after the other.

All at once, XLA copies their states out of the pool and back, and what LLVM makes of the loop over them, of which sums it rounds
one product or the other, depends on how many there are.
"""

from __future__ import annotations

import jax

from pallas_kernels.gated_delta.reference import one_token
from pallas_kernels.gated_delta.reference import supports as supports
from pallas_kernels.gated_delta.xla import chunks
from pallas_kernels.recurrent_rows.rows import Rows, row_by_row


def gated_delta(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    decays: jax.Array,
    rates: jax.Array,
    states: jax.Array,
    rows: Rows,
    *,
    precision: jax.lax.Precision,
) -> tuple[jax.Array, jax.Array]:
    """See the op's contract. Memory: a row's state, and of a chunk as in plain XLA."""
    chunk, size = chunks(decays, precision)
    return row_by_row(one_token, chunk, (q, k, v, decays, rates), states, rows, size=size)
