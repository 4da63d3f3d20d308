"""The rule on a CPU: one token after the other, of one row after the other, so that neither cuts nor company change a bit."""

from __future__ import annotations

import jax

from pallas_kernels.generalised_delta.reference import one_token
from pallas_kernels.generalised_delta.reference import supports as supports
from pallas_kernels.recurrent_rows.rows import Rows, token_by_token


def generalised_delta(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    decays: jax.Array,
    removed: jax.Array,
    rates: jax.Array,
    states: jax.Array,
    rows: Rows,
    *,
    precision: jax.lax.Precision,
) -> tuple[jax.Array, jax.Array]:
    """See the op's contract. Memory: a row's state."""
    return token_by_token(one_token, (q, k, v, decays, removed, rates), states, rows)
