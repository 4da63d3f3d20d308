"""Pages that leave the device for the host's memory and come back: the programs that move them, and the blocks in between."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from jaxengine.contract.batch import FromHost, Int32s, Move, ToHost
from jaxengine.device.layers.cache import Cache
from jaxengine.device.runtime.space import ProgramKind, ProgramSpace
from jaxengine.device.runtime.transfer import put
from jaxengine.device.weights.placement import Bounds, bounds_of
from xla_cache import Program

PAGES_PER_LAUNCH = 16
Block = Mapping[Bounds, NDArray[Any]]
"""A page in all lanes of its pool, `[lanes, T, C, L]`, by the part of it that a device has: each host has its devices' parts."""


def move_names(pool: int) -> tuple[str, str]:
    """The programs that take pages of a pool to the host, and from it."""
    return f"pages to host {pool}", f"pages from host {pool}"


def move_programs(space: ProgramSpace) -> Iterator[Program]:
    """Of each pool `(pages, ids [M]) -> blocks [M x lanes, ...]` and `(pages, ids, blocks) -> pages`; page 0 is padding."""
    if not space.host_blocks:
        return
    ids = space.replicated_struct((PAGES_PER_LAUNCH,), jnp.int32)
    blocks = block_structs(space)
    for number, (pages, pool, num_pages) in enumerate(
        zip(space.kv_pages, space.cache.pools, space.num_pages, strict=True)
    ):
        lanes = np.arange(pool.lanes, dtype=np.int32) * num_pages

        def to_host(pages: jax.Array, ids: jax.Array, lanes: Int32s = lanes, number: int = number) -> jax.Array:
            taken = pages.at[(ids[:, None] + lanes).reshape(-1)].get(mode="clip")
            sharding = blocks[number].sharding
            return taken if sharding is None else jax.lax.with_sharding_constraint(taken, sharding)

        def from_host(pages: jax.Array, ids: jax.Array, blocks: jax.Array, lanes: Int32s = lanes) -> jax.Array:
            return pages.at[(ids[:, None] + lanes).reshape(-1)].set(blocks, mode="drop")

        names, facts = move_names(number), {"lanes": pool.lanes, "num_pages": num_pages}
        yield space.program(names[0], to_host, (pages, ids), kind=ProgramKind.MOVE, facts=facts)
        arguments = (pages, ids, blocks[number])
        yield space.program(names[1], from_host, arguments, kind=ProgramKind.MOVE, donate=(0,), facts=facts)


def block_structs(space: ProgramSpace) -> tuple[jax.ShapeDtypeStruct, ...]:
    """What one launch moves, of each pool."""
    return tuple(
        jax.ShapeDtypeStruct((PAGES_PER_LAUNCH * pool.lanes, *pages.shape[1:]), pages.dtype, sharding=pages.sharding)
        for pages, pool in zip(space.kv_pages, space.cache.pools, strict=True)
    )


class Arriving(NamedTuple):
    """Pages of a pool on their way to the host, by the part that a device has, and the blocks that they become."""

    parts: Mapping[Bounds, jax.Array]
    pool: int
    blocks: Sequence[int]

    @property
    def is_ready(self) -> bool:
        """Whether the device has made all parts."""
        return all(part.is_ready() for part in self.parts.values())  # type: ignore[attr-defined]


class HostStore:
    """Blocks of each pool by their numbers, below `space.host_blocks`. Nothing is waited for but a block that has to go back."""

    def __init__(self, space: ProgramSpace) -> None:
        self._space = space
        self._structs = block_structs(space)
        self._blocks: dict[tuple[int, int], Block] = {}
        self._arriving: deque[Arriving] = deque()

    def move(self, moves: Sequence[Move], cache: Cache, call: Callable[..., Any]) -> Cache:
        """Launch the moves of a step: first all that leave the device, then those that come back. `call` runs a program by name.

        Raises:
            ValueError: there is no store, no such block in it, or nothing in the block.
        """
        self._take_in(wait=False)
        most = self._space.host_blocks
        for move in moves:
            if not 0 <= move.block < most:
                raise ValueError(
                    f"block {move.block} is not among the {most} that the host was planned to keep of a pool"
                )
        for pool in range(len(cache.pages)) if moves else ():
            leaving = [move for move in moves if isinstance(move, ToHost) and move.pool == pool]
            for part in _launches(leaving):
                taken = call(move_names(pool)[0], cache.pages[pool], self._ids(part))
                parts = {bounds_of(shard.index, taken.shape)[1:]: shard.data for shard in taken.addressable_shards}
                for array in parts.values():
                    array.copy_to_host_async()
                self._arriving.append(Arriving(parts, pool, [move.block for move in part]))
        for pool in range(len(cache.pages)) if moves else ():
            returning = [move for move in moves if isinstance(move, FromHost) and move.pool == pool]
            for part in _launches(returning):
                blocks = self._put(pool, [self._block(move) for move in part])
                pages = list(cache.pages)
                pages[pool] = call(move_names(pool)[1], pages[pool], self._ids(part), blocks)
                cache = replace(cache, pages=tuple(pages))
        return cache

    def run_once(self, cache: Cache, call: Callable[..., Any]) -> Cache:
        """Run every program once, on the sink."""
        pages, ids = list(cache.pages), self._ids(())
        for pool in range(len(pages)) if self._space.host_blocks else ():
            blocks = call(move_names(pool)[0], pages[pool], ids)
            pages[pool] = call(move_names(pool)[1], pages[pool], ids, blocks)
        return replace(cache, pages=tuple(pages))

    def _ids(self, moves: Sequence[Move]) -> jax.Array:
        ids = np.zeros(PAGES_PER_LAUNCH, np.int32)
        ids[: len(moves)] = [move.page for move in moves]
        return put(ids, self._space.replicated)

    def _block(self, move: FromHost) -> Block:
        key = move.pool, move.block
        while key not in self._blocks or any(
            move.pool == one.pool and move.block in one.blocks for one in self._arriving
        ):
            if not self._arriving:
                raise ValueError(f"block {move.block} of pool {move.pool} is to come back and was never written")
            self._take_in(wait=True)
        return self._blocks[key]

    def _take_in(self, *, wait: bool) -> None:
        """Keep what has arrived, or with `wait` the first that is on its way."""
        while self._arriving and (wait or self._arriving[0].is_ready):
            wait, one = False, self._arriving.popleft()
            lanes = self._space.cache.pools[one.pool].lanes
            parts = {bounds: np.asarray(part) for bounds, part in one.parts.items()}
            for place, block in enumerate(one.blocks):
                rows = slice(place * lanes, (place + 1) * lanes)
                self._blocks[one.pool, block] = {bounds: part[rows].copy() for bounds, part in parts.items()}

    def _put(self, pool: int, blocks: Sequence[Block]) -> jax.Array:
        """Blocks side by side on the devices, as the program that scatters them takes them."""
        struct, lanes = self._structs[pool], self._space.cache.pools[pool].lanes

        def part(index: tuple[slice, ...] | None) -> NDArray[Any]:
            bounds = bounds_of(index or (), struct.shape)
            out = np.zeros([high - low for low, high in bounds], struct.dtype)
            for place, block in enumerate(blocks):
                out[place * lanes : (place + 1) * lanes] = block[bounds[1:]]
            return out

        sharding = struct.sharding or jax.sharding.SingleDeviceSharding(jax.devices()[0])
        return jax.make_array_from_callback(struct.shape, sharding, part)


def _launches(moves: Sequence[Any]) -> Iterator[Sequence[Any]]:
    return (moves[i : i + PAGES_PER_LAUNCH] for i in range(0, len(moves), PAGES_PER_LAUNCH))
