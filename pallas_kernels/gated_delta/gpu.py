"""The gated delta rule on a GPU: a kernel that reads and writes each row's state once, whatever the row's length."""

from __future__ import annotations

from typing import Any

import jax

from pallas_kernels.gpu.recurrence import advance_rows, refused
from pallas_kernels.recurrent_rows.form import Form, Tokens
from pallas_kernels.recurrent_rows.rows import Rows


def supports(q: Any, k: Any, v: Any, decays: Any, rates: Any, states: Any, *args: Any, **options: Any) -> str | None:
    """None, or why not."""
    return refused(states)


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
    """See the op's contract. Everything is float32, whatever `precision` allows."""
    form, tokens = Form(learns=True, by_channel=decays.ndim == 3), Tokens(q, k, v, decays, rates)
    return advance_rows(form, tokens, states, rows)
