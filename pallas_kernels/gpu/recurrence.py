"""Recurrences on NVIDIA GPUs from Ampere on, in Pallas through Triton: a row's state is read once and written once, in place.

In between it lies in the registers of programs of one warp, each some of its columns, while the row's tokens go by one after the
other. All sums are float32, and do not depend on how a sequence was cut into rows. Of a long prompt that is many short steps,
which chunks on the tensor cores would take together. Agrees on an H100; compiled for A100 and H200. No time was taken.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from pallas_kernels.gpu.device import AMPERE, gpu_refused, interpreted
from pallas_kernels.recurrent_rows.form import Form, Tokens
from pallas_kernels.recurrent_rows.rows import Rows

VALUES = 2048
"""Of a state in one program: 64 for each of its threads."""
MAX_SIZE = 512
"""Of a state's columns, of which a program has at least four."""


class _Token(NamedTuple):
    """What a program reads of one place: `q` and `k [S]`, `v [lanes]`, what is left `[S, 1]` or `[lanes]`, `rates [lanes]`."""

    q: jax.Array
    k: jax.Array
    v: jax.Array
    left: jax.Array
    rates: jax.Array


def refused(states: Any) -> str | None:
    """None, or why a GPU's kernel cannot take states `[P, T, S, L]`."""
    if states.shape[2] > MAX_SIZE:
        return f"states of {states.shape[2]} by {states.shape[3]}; the GPU kernel takes up to {MAX_SIZE} (axis S)"
    return gpu_refused(AMPERE)


def advance_rows(form: Form, tokens: Tokens, states: jax.Array, rows: Rows) -> tuple[jax.Array, jax.Array]:
    """Rows of any length.

    Args:
        form: which recurrence it is.
        tokens: of the step, padding with them.
        states: float32 `[P, T, S, L]`.
        rows: of the step.

    Returns:
        float32 `[N, T, L]`, zeros in padding; and the states, in place.
    """
    _, tiles, size, width = states.shape
    held = pl.next_power_of_2(size)
    lanes = min(pl.next_power_of_2(width), max(4, VALUES // held))
    operands = [*rows, *tokens, jnp.zeros(tokens.v.shape, jnp.float32), states]
    results = [jax.ShapeDtypeStruct(array.shape, jnp.float32) for array in operands[-2:]]
    out, states = pl.pallas_call(
        functools.partial(_kernel, form=form, held=held, lanes=lanes),
        out_shape=results,
        grid=(rows.slots.size, tiles, pl.cdiv(width, lanes)),
        input_output_aliases={len(operands) - 2: 0, len(operands) - 1: 1},
        compiler_params=plgpu.CompilerParams(num_warps=1, num_stages=1),
        interpret=interpreted(),
        name="advance_rows",
    )(*operands)
    return out, states


def _kernel(slots: Any, starts: Any, offsets: Any, *refs: Any, form: Form, held: int, lanes: int) -> None:
    """Some columns of one row's state. Refs: `q`, `k`, `v`, `decays`, `rates`; zeros and states; results, and states again."""
    q, k, v, decays, rates, _, _, out, states = refs
    row, tile = pl.program_id(0), pl.program_id(1)
    _, tiles, size, width = states.shape
    s = jnp.arange(held, dtype=jnp.int32)
    lane = pl.program_id(2) * lanes + jnp.arange(lanes, dtype=jnp.int32)
    key, head = tile // (tiles // k.shape[1]), (tile * width + lane) // (tiles * width // rates.shape[1])
    begin, end = offsets[row], offsets[row + 1]

    def read(place: jax.Array) -> _Token:
        """Zeros behind the row's last place."""

        def load(ref: Any, *at: Any, own: jax.Array) -> jax.Array:
            found: jax.Array = plgpu.load(ref.at[(place, *at)], mask=own & (place < end), other=0.0)
            return found.astype(jnp.float32)

        logs = load(decays, tile, s, own=s < size) if form.by_channel else load(decays, head, own=lane < width)
        return _Token(
            load(q, key, s, own=s < size),
            load(k, key, s, own=s < size),
            load(v, tile, lane, own=lane < width),
            jnp.exp(logs),
            load(rates, head, own=lane < width),
        )

    def advance(place: jax.Array, carry: tuple[jax.Array, _Token]) -> tuple[jax.Array, _Token]:
        state, token = carry
        following = read(place + 1)  # on its way while this one is computed
        state = state * (token.left[:, None] if form.by_channel else token.left[None, :])
        value = token.v
        if form.learns:
            value = value - (state * token.k[:, None]).sum(axis=0)
        state = state + token.k[:, None] * (token.rates * value)[None, :]
        plgpu.store(out.at[place, tile, lane], (state * token.q[:, None]).sum(axis=0), mask=lane < width)
        return state, following

    @pl.when(end > begin)
    def advance_row() -> None:
        at = states.at[slots[row], tile, s[:, None], lane[None, :]]
        own = (s < size)[:, None] & (lane < width)[None, :]
        before = plgpu.load(at, mask=own & (starts[row] > 0), other=0.0)
        after, _ = lax.fori_loop(begin, end, advance, (before, read(begin)))
        plgpu.store(at, after, mask=own)
