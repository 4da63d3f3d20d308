"""The gated delta rule on a TPU: kernels that read and write each row's state once.

Where a chunk does not fit, or decays are by channel and heads share keys, that is so of rows of one token; longer ones are XLA's,
in place.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.gated_delta import xla
from pallas_kernels.recurrent_rows.form import Form, Tokens
from pallas_kernels.recurrent_rows.rows import Rows, longer_rows
from pallas_kernels.tpu.recurrence import longer
from pallas_kernels.tpu.recurrence.single import refused, rows_of_one_token


def supports(q: Any, k: Any, v: Any, decays: Any, rates: Any, states: Any, rows: Rows, **options: Any) -> str | None:
    """None, or why not."""
    return refused(states, v.shape[2], rows)


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
    """See the op's contract."""
    form, tokens = Form(learns=True, by_channel=decays.ndim == 3), Tokens(q, k, v, decays, rates)
    out, states = rows_of_one_token(form, tokens, states, rows)
    if len(out) == 1:
        return out, states
    if longer.fits(form, k.shape[1], states) and not (form.by_channel and k.shape[1] < v.shape[1]):
        return longer.longer_rows(form, tokens, out, states, rows, precision=precision)
    chunk, size = xla.chunks(decays, precision)
    out = jnp.pad(out, ((0, size), (0, 0), (0, 0)))
    return longer_rows(chunk, tokens, out, states, rows, size=size)
