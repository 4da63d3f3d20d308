"""A chunk of a recurrence on a TPU: some tokens of one row, in VMEM.

Each token sees the ones before it as in attention, less what is forgotten between the two, and what was before the chunk in the
state. What the tokens of a delta rule learn depends on one another (`tpu_learnt.py`).
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.storage import LANES
from pallas_kernels.tpu.recurrence.decays import CHUNK, Begun, ByChannel, ByHead, Places, Settings
from pallas_kernels.tpu.recurrence.learnt import product, solve, terms

TOGETHER = 8
"""Tiles that are computed in one pass of a loop, at most: each waits for its own numbers most of the time."""
TOGETHER_BY_CHANNEL = 4
"""The same, where decays are by channel: 8 would take 10% less time, and as long again to compile in every layer."""


def advance(settings: Settings, tokens: list[Any], results: Any, turned: Any, state: Any) -> None:
    """A chunk of one row: places that are not the row's hold zeros and change nothing.

    Args:
        settings: of the kernel.
        tokens: queries and keys `[C, K, S]`, values `[C, T, 128]`, numbers by head `[C, F, heads]` (rates; logarithms of decays
            before them, where those are by head) and by channel those logarithms `[C, T, S]`.
        results: `[C, T, 128]`.
        turned: scratch `[2, heads, 128]`.
        state: `[T, S, 128]`.
    """
    places = [Places(x, simulated=settings.simulated) for x in tokens]
    asked = Places(results, simulated=settings.simulated)
    count, tiles = tokens[0].shape[1], tokens[2].shape[1]
    shared, of_tile = tiles // count, settings.of_tile
    keys_together, tiles_together = together(count, tiles, by_channel=settings.form.by_channel)
    decays = (ByChannel if settings.form.by_channel else ByHead)(settings, places, turned, state)
    lane = lax.broadcasted_iota(jnp.int32, (CHUNK, LANES), 1)
    multiply = functools.partial(product, exact=settings.exact)

    def end(tile: Begun, taken: jax.Array) -> tuple[jax.Array, jax.Array]:
        """What comes out, and the state behind the chunk."""
        out = tile.asked
        for number, seen in enumerate(tile.seen):
            own = taken if of_tile == 1 else jnp.where(lane // (LANES // of_tile) == number, taken, 0.0)
            out += multiply(seen, own)
        left = taken if tile.left is None else taken * tile.left
        return out, tile.kept + multiply(tile.written, left)

    def advance_keys(number: jax.Array, _: None) -> None:
        first = number * keys_together
        of_keys = [decays.key(first + member) for member in range(keys_together)]

        def advance_tiles(number: jax.Array, _: None) -> None:
            """All is read before anything is written, and tiles go step by step together, so that their latencies overlap."""
            chosen = [
                (first + member) * shared + number * tiles_together + tile
                for member in range(keys_together)
                for tile in range(tiles_together)
            ]
            begun = [decays.begin(of_keys[place // tiles_together], tile) for place, tile in enumerate(chosen)]
            taken = [tile.given for tile in begun]
            matrices = [tile.matrix for tile in begun if tile.matrix is not None]
            if matrices:
                taken = solve(matrices, taken, functools.partial(terms, exact=settings.exact))
            ended = [end(*both) for both in zip(begun, taken, strict=True)]
            for tile, (out, after) in zip(chosen, ended, strict=True):
                asked[tile], state[tile] = out, after

        lax.fori_loop(0, shared // tiles_together, advance_tiles, None)

    lax.fori_loop(0, count // keys_together, advance_keys, None)


def together(keys: int, tiles: int, *, by_channel: bool) -> tuple[int, int]:
    """How many heads of keys are computed in one pass of a loop, and how many tiles of each."""
    shared, most = tiles // keys, TOGETHER_BY_CHANNEL if by_channel else TOGETHER
    of_key = math.gcd(shared, most)
    return (math.gcd(keys, most // of_key) if of_key == shared else 1), of_key
