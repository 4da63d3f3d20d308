"""What one launch moves between the device and blocks of the host's memory, and the programs that do."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from jaxengine.contract.arrays import Int32s
from jaxengine.device.runtime.memory import shard_bytes
from jaxengine.device.runtime.program_kinds import ProgramKind
from jaxengine.device.runtime.space import ProgramSpace
from jaxengine.device.weights.placement import Bounds, bounds_of
from xla_cache import Program

PAGES_PER_LAUNCH = 16
TRANSIT_BYTES = 1 << 28
"""What one device holds beside its pages of those that come and of those that go, each: as many launches, within limits."""
FEWEST_LAUNCHES, MOST_LAUNCHES = 2, 4

Held: TypeAlias = Any
"""All that the device holds of a pool: an array of pages, or arrays of snapshots by name."""


@dataclass(frozen=True)
class Moved:
    """What one launch moves of a pool: `count` pages, or snapshots of recurrent layers' states.

    `held` is all that the device has of the pool, and `structs` has an array `[count * lanes, ...]` for each array of it. `names`
    are the programs to the host and from it.
    """

    names: tuple[str, str]
    count: int
    lanes: int
    held: Held
    structs: Held

    @property
    def arrays(self) -> list[jax.ShapeDtypeStruct]:
        """The arrays of `structs`, in the order in which they are numbered."""
        return jax.tree.leaves(self.structs)

    @property
    def shard_bytes(self) -> int:
        """Bytes of a launch on one device."""
        return sum(map(shard_bytes, self.arrays))

    @property
    def block_bytes(self) -> int:
        """Bytes of a block on all devices, each part of it once."""
        size = 0
        for struct in self.arrays:
            indices = sharding_of(struct).devices_indices_map(struct.shape).values()
            parts = {bounds_of(index or (), struct.shape)[1:] for index in indices}
            numbers = sum(math.prod(high - low for low, high in part) for part in parts)
            size += self.lanes * numbers * np.dtype(struct.dtype).itemsize
        return size

    @property
    def parts(self) -> dict[Bounds, tuple[tuple[int, ...], np.dtype]]:
        """Shape and type of a block in all lanes, by the part of it that a device of this host has."""
        return {
            part_of(number, bounds): ((self.lanes, *(high - low for low, high in bounds[1:])), np.dtype(struct.dtype))
            for number, struct in enumerate(self.arrays)
            for index in sharding_of(struct).addressable_devices_indices_map(struct.shape).values()
            for bounds in [bounds_of(index or (), struct.shape)]
        }


def part_of(number: int, bounds: Bounds) -> Bounds:
    """By what a block's part is known: these bounds of a launch's array, the one with this number."""
    return ((number, number + 1), *bounds[1:])


def all_moved(space: ProgramSpace) -> tuple[Moved, ...]:
    """Of each pool, as moves number them: snapshots come behind the pages."""
    pools = zip(space.kv_pages, space.cache.pools, strict=True)
    found = []
    for number, (pages, pool) in enumerate(pools):
        names = f"pages to host {number}", f"pages from host {number}"
        shape = (PAGES_PER_LAUNCH * pool.lanes, *pages.shape[1:])
        struct = jax.ShapeDtypeStruct(shape, pages.dtype, sharding=pages.sharding)
        found.append(Moved(names, PAGES_PER_LAUNCH, pool.lanes, pages, struct))
    if space.num_snapshots:
        found.append(Moved(("states to host", "states from host"), 1, 1, space.snapshots, space.one_snapshot))
    return tuple(found)


def move_programs(space: ProgramSpace) -> Iterator[Program]:
    """Of each pool `(held, ids [M]) -> blocks [M x lanes, ...]` and `(held, ids, blocks) -> held`; page 0 is padding."""
    if not space.host_blocks:
        return
    for number, moved in enumerate(all_moved(space)):
        ids = space.replicated_struct((moved.count,), jnp.int32)
        take: Callable[..., Held] = _take_snapshot
        write: Callable[..., Held] = _write_snapshot
        facts: dict[str, int] = {}
        if number < len(space.num_pages):
            facts = {"lanes": moved.lanes, "num_pages": space.num_pages[number]}
            lanes = np.arange(moved.lanes, dtype=np.int32) * space.num_pages[number]
            take, write = partial(_take_pages, lanes), partial(_write_pages, lanes)

        def taken(held: Held, ids: jax.Array, moved: Moved = moved, take: Callable[..., Held] = take) -> Held:
            return _placed(take(held, ids), moved.structs)

        def written(
            held: Held, ids: jax.Array, blocks: Held, moved: Moved = moved, write: Callable[..., Held] = write
        ) -> Held:
            return _placed(write(held, ids, blocks), moved.held)

        yield space.program(moved.names[0], taken, (moved.held, ids), kind=ProgramKind.MOVE, facts=facts)
        arguments = (moved.held, ids, moved.structs)
        yield space.program(moved.names[1], written, arguments, kind=ProgramKind.MOVE, donate=(0,), facts=facts)


def launches_underway(space: ProgramSpace) -> int:
    """Launches whose pages a device may hold beside its own, of those that come and of those that go, each."""
    return max(FEWEST_LAUNCHES, min(MOST_LAUNCHES, TRANSIT_BYTES // _largest(space)))


def transit_bytes(space: ProgramSpace) -> int:
    """The most bytes that one device holds of pages that come and go; 0 without blocks."""
    return 2 * launches_underway(space) * _largest(space) if space.host_blocks else 0


def most_leaving(space: ProgramSpace) -> int:
    """The most pages that leave the device with one step."""
    return PAGES_PER_LAUNCH * launches_underway(space)


def block_bytes(space: ProgramSpace) -> tuple[int, ...]:
    """Bytes of a block of each pool on all devices."""
    return tuple(moved.block_bytes for moved in all_moved(space))


def sharding_of(struct: jax.ShapeDtypeStruct) -> jax.sharding.Sharding:
    """Where an array lies: on the only device, if nothing is said of it."""
    return struct.sharding or jax.sharding.SingleDeviceSharding(jax.devices()[0])


def _largest(space: ProgramSpace) -> int:
    return max(moved.shard_bytes for moved in all_moved(space))


def _take_pages(lanes: Int32s, pages: jax.Array, ids: jax.Array) -> jax.Array:
    return pages.at[(ids[:, None] + lanes).reshape(-1)].get(mode="clip")


def _write_pages(lanes: Int32s, pages: jax.Array, ids: jax.Array, blocks: jax.Array) -> jax.Array:
    return pages.at[(ids[:, None] + lanes).reshape(-1)].set(blocks, mode="drop")


def _take_snapshot(held: dict[str, jax.Array], ids: jax.Array) -> dict[str, jax.Array]:
    taken = {name: jax.lax.dynamic_slice_in_dim(array, ids[0], 1, axis=1) for name, array in held.items()}
    return {name: jnp.swapaxes(array, 0, 1) for name, array in taken.items()}


def _write_snapshot(held: dict[str, jax.Array], ids: jax.Array, blocks: dict[str, jax.Array]) -> dict[str, jax.Array]:
    return {
        name: jax.lax.dynamic_update_slice_in_dim(array, jnp.swapaxes(blocks[name], 0, 1), ids[0], axis=1)
        for name, array in held.items()
    }


def _placed(arrays: Held, structs: Held) -> Held:
    """For use while a program is traced: where these lie."""

    def place(array: jax.Array, struct: jax.ShapeDtypeStruct) -> jax.Array:
        return array if struct.sharding is None else jax.lax.with_sharding_constraint(array, struct.sharding)

    return jax.tree.map(place, arrays, structs)
