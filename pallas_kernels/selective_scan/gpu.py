"""The scan on a GPU: a kernel that reads and writes each row's state once, whatever the row's length."""

from __future__ import annotations

from typing import Any

import jax

from pallas_kernels.gpu.recurrence import advance_rows, refused
from pallas_kernels.recurrent_rows.form import Form, Tokens
from pallas_kernels.recurrent_rows.rows import Rows


def supports(
    x: Any, steps: Any, rates: Any, inward: Any, outward: Any, states: Any, *args: Any, **options: Any
) -> str | None:
    """None, or why not."""
    return refused(states)


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
    """See the op's contract. Everything is float32, whatever `precision` allows."""
    form = Form(learns=False, by_channel=False)
    tiles = x.reshape(len(x), states.shape[1], states.shape[3])
    tokens = Tokens(outward, inward, tiles, steps * rates, steps)
    out, states = advance_rows(form, tokens, states, rows)
    return out.reshape(x.shape), states
