"""What a layer keeps of a sequence, as the layer itself declares it, and where in the cache it then finds it.

A layer's `keeps` is a tuple of these; empty where each token is worked on alone. `device/runtime/cache_layout.py` makes pools of
pages and arrays by slot of what all layers declare.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

WHOLE_CHUNKS = 128
"""A row goes through a recurrence in chunks, from its beginning; of every one and platform so many tokens are whole chunks."""


@dataclass(frozen=True, slots=True)
class Paged:
    """Keys and values of each token, in pages.

    `heads` already counts repeats for meshes with more chips than KV heads; of each a key has `key` numbers and a value `value`.
    A `value` of 0 says that a token keeps one latent vector of `key` numbers, which all heads share, whole on every device.
    `dtype` is what they are kept in, None being the KV cache's. `window` is how many positions back a token sees, itself
    included: pages that lie wholly before it go back while the sequence runs. None is all.
    """

    heads: int
    key: int
    value: int
    dtype: jnp.dtype[Any] | None = None
    window: int | None = None

    @property
    def latent(self) -> bool:
        """Whether a token keeps one vector for all heads."""
        return self.value == 0


@dataclass(frozen=True, slots=True)
class IndexKeys:
    """A small key of each token, `size` numbers in `dtype`, whole on every device, in pages beside those of `Paged`.

    By these an indexer chooses the `count` tokens that a token attends to (`layers/indexer.py`).
    """

    size: int
    dtype: jnp.dtype[Any]
    count: int


@dataclass(frozen=True, slots=True)
class Reads:
    """Nothing of its own: the layer sees the pages of the layer of this number."""

    layer: int


@dataclass(frozen=True, slots=True)
class Takes:
    """Nothing of a sequence: in each step the layer is given what the layer before it hands on in the cache.

    So the two are in one program.
    """


@dataclass(frozen=True, slots=True)
class State:
    """An array of each running sequence: `shape` and `dtype` of one layer's; `axes` as `layers/sharding.py` names them.

    `name` is by which the layer finds it in the cache, and all layers of a model that keep the like.
    """

    name: str
    shape: tuple[int, ...]
    axes: tuple[str, ...]
    dtype: jnp.dtype[Any]


@dataclass(frozen=True, slots=True)
class PerSlot:
    """States that a layer keeps of each running sequence, by the sequence's slot.

    A row of a step goes on from what the row before it left, and a sequence's first from zeros; so a step has one row of a
    sequence at most, and no prefix is shared. A prompt that is cut into rows at multiples of `cut` positions is summed in the
    same order as whole.
    """

    states: tuple[State, ...]
    cut: int = WHOLE_CHUNKS


Keeps = tuple[Paged | IndexKeys | Reads | Takes | PerSlot, ...]
"""All that one layer keeps: pages or another's, keys of an indexer, and states, at most one declaration of each."""


class PageIndex(NamedTuple):
    """Where pages of one kind are: their pool, their group (a row of page tables) and their lane of the pool."""

    pool: int = 0
    group: int | jax.Array = 0
    lane: int | jax.Array = 0


class CacheIndex(NamedTuple):
    """Where a layer finds what it keeps: its pages, as in `PageIndex`; the number of its states among those of the same name;
    and the pages of its indexer's keys, None where it has none. Of what it does not keep the numbers mean nothing.
    """

    pool: int = 0
    group: int | jax.Array = 0
    lane: int | jax.Array = 0
    state: int | jax.Array = 0
    keys: PageIndex | None = None

    @property
    def pages(self) -> PageIndex:
        return PageIndex(self.pool, self.group, self.lane)

    @property
    def pools(self) -> tuple[int, ...]:
        """All pools that the layer has pages in."""
        return (self.pool,) if self.keys is None else (self.pool, self.keys.pool)

    @property
    def numbers(self) -> tuple[int | jax.Array, ...]:
        """All but the pools, which shape a program."""
        return (self.group, self.lane, self.state, *(() if self.keys is None else self.keys[1:]))

    def with_numbers(self, group: Any, lane: Any, state: Any, *keys: Any) -> CacheIndex:
        """The same pools with other `numbers`."""
        own = None if self.keys is None else PageIndex(self.keys.pool, *keys)
        return CacheIndex(self.pool, group, lane, state, own)
