"""The GPU kernel: one program attends a tile of a row's queries, places by heads, to one share of the row's blocks of tokens.

Lowered through Triton. A vector is loaded once, in two parts whose widths are powers of two: the first is key and value, the
second only key. What is masked is as in paged attention.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from pallas_kernels.gpu.attention.pages import operand, slots_of_block
from pallas_kernels.gpu.attention.schedule import Shares
from pallas_kernels.gpu.attention.softmax import LOG2_E, UNSEEN, State, absorb, give, product


@dataclass(frozen=True, slots=True)
class Settings:
    """What is known when the kernel is compiled. Query `m` of a tile is its place `m // group`, its head `m % group`."""

    sizes: tuple[int, ...]  # of queries, M: powers of two of at least 16, which is what tensor cores take
    block_tokens: int
    group: int  # heads of a tile
    widths: tuple[int, ...]  # powers of two that hold a value, and the rest of a vector if there is any
    value_size: int
    page_tokens: int
    compute: Any  # dtype of the products' operands
    converts: bool  # stored values to it; float8_e4m3fn before Ada is taken apart instead
    scale: float


class _Program(NamedTuple):
    """Its share as scalars, its first head, and what it reads and writes."""

    share: Shares
    first_head: jax.Array
    q: Any
    latents: Any
    table: Any
    results: list[Any]


def kernel(*refs: Any, settings: Settings, shared: bool) -> None:
    """Refs: `Shares`; `q [N, heads, D]`, `latents [pages * T, L]`, `table [B, P]`; other rows' results if there are any; the
    results, as `gpu_softmax.give` writes them: states where tiles are `shared`.

    The grid is `(tiles of heads, shares)`.
    """
    scalars, (q, latents, table, *rest) = refs[: len(Shares._fields)], refs[len(Shares._fields) :]
    share = Shares(*(scalar[pl.program_id(1)] for scalar in scalars))
    first_head = pl.program_id(0) * settings.group
    program = _Program(share, first_head, q, latents, table, rest[-3:] if shared else rest[-1:])
    queries = share.places * settings.group
    for smaller, size in itertools.pairwise((0, *settings.sizes)):
        pl.when((smaller < queries) & (queries <= size))(functools.partial(_attend, program, size, settings))


def _attend(program: _Program, size: int, settings: Settings) -> None:
    """Attend the share's queries, which are no more than `size`."""
    share = program.share
    _, heads, numbers = program.q.shape
    m = jnp.arange(size, dtype=jnp.int32)
    place, head = m // settings.group, program.first_head + m % settings.group
    exists = (place < share.places) & (head < heads)
    token = share.start + place
    sees = token < share.end
    ends = (settings.value_size, numbers)
    parts = [
        first + jnp.arange(width, dtype=jnp.int32) for first, width in zip((0, ends[0]), settings.widths, strict=False)
    ]

    def load(ref: Any, at: tuple[jax.Array, ...], rows: jax.Array) -> list[jax.Array]:
        """The parts of vectors, zeros beyond their ends and where a row is not to be read."""
        return [
            plgpu.load(
                ref.at[(*(index[:, None] for index in at), lanes[None, :])],
                mask=jnp.broadcast_to(rows[:, None], (rows.size, lanes.size)) & (lanes < end)[None, :],
                other=0.0,
            )
            for lanes, end in zip(parts, ends, strict=False)
        ]

    queries = [part.astype(settings.compute) for part in load(program.q, (share.place + place, head), exists & sees)]
    convert = functools.partial(operand, compute=settings.compute, converts=settings.converts)

    def attend_block(block: jax.Array, state: State) -> State:
        position = block * settings.block_tokens + jnp.arange(settings.block_tokens, dtype=jnp.int32)
        readable = position < share.end
        slot = slots_of_block(
            program.table,
            share.row,
            block,
            readable,
            tokens=settings.block_tokens,
            page_tokens=settings.page_tokens,
        )
        keys = [convert(part) for part in load(program.latents, (slot,), readable)]
        seen = readable[None, :] & (position[None, :] <= token[:, None])
        scores = functools.reduce(jnp.add, (product(*pair, axis=1) for pair in zip(queries, keys, strict=True)))
        scores = scores * (settings.scale * LOG2_E)
        return absorb(state, jnp.where(seen, scores, -jnp.inf), keys[0], compute=settings.compute)

    nothing = State(
        jnp.zeros((size, settings.widths[0]), jnp.float32),
        jnp.full(size, UNSEEN, jnp.float32),
        jnp.zeros(size, jnp.float32),
    )
    state = lax.fori_loop(share.begin, share.stop, attend_block, nothing)
    mixed = jnp.where(sees[:, None], state.mixed, 0.0)
    give(state._replace(mixed=mixed), program.results, share.to + place, head, exists, parts[0])
