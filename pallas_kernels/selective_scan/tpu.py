"""The scan on a TPU: kernels that read and write each row's state once.

Where a chunk does not fit, that is so of rows of one token; longer ones are XLA's, in place.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.recurrent_rows.form import Form, Tokens
from pallas_kernels.recurrent_rows.rows import Rows, longer_rows
from pallas_kernels.selective_scan import xla
from pallas_kernels.tpu.recurrence import longer
from pallas_kernels.tpu.recurrence.single import refused, rows_of_one_token


def supports(
    x: Any, steps: Any, rates: Any, inward: Any, outward: Any, states: Any, rows: Rows, **options: Any
) -> str | None:
    """None, or why not."""
    return refused(states, x.shape[2], rows)


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
    """See the op's contract."""
    form = Form(learns=False, by_channel=False)
    tiles = x.reshape(len(x), states.shape[1], states.shape[3])
    tokens = Tokens(outward, inward, tiles, steps * rates, steps)
    out, states = rows_of_one_token(form, tokens, states, rows)
    if len(out) == 1:
        return out.reshape(x.shape), states
    if longer.fits(form, inward.shape[1], states):
        out, states = longer.longer_rows(form, tokens, out, states, rows, precision=precision)
        return out.reshape(x.shape), states
    chunk, size = xla.chunk(rates, precision), xla.CHUNK
    out = jnp.pad(out.reshape(x.shape), ((0, size), (0, 0), (0, 0)))
    return longer_rows(chunk, (x, steps, inward, outward), out, states, rows, size=size)
