"""A recurrence as its kernels see it: one of two kinds, on states in tiles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax


@dataclass(frozen=True, kw_only=True)
class Form:
    """Which recurrence it is.

    `learns`: what is taken up is the value less what the state has for the key; `by_channel`: a decay is of a row of the state.
    """

    learns: bool
    by_channel: bool


class Tokens(NamedTuple):
    """What a recurrence reads of each place, for states `[P, T, S, L]` in tiles: `T` of `S` rows by `L` channels.

    `K` divides `T`: neighbouring tiles share a head of keys. `L` times `T` channels are of `heads`, which are `rates.shape[1]`.
    """

    q: jax.Array
    """`[N, K, S]`, what states are asked with."""
    k: jax.Array
    """The same, by which they take values up."""
    v: jax.Array
    """`[N, T, L]`."""
    decays: jax.Array
    """Logarithms, `[N, heads]`, or float32 `[N, T, S]` by channel."""
    rates: jax.Array
    """`[N, heads]`, of values."""
