"""Adapters in the host's memory, and in slots on the device, which planned programs write."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from numpy.typing import NDArray

from jaxengine.device.runtime.program_kinds import ProgramKind
from jaxengine.device.runtime.space import ProgramSpace
from jaxengine.device.runtime.transfer import put
from xla_cache import Program

Packed = Sequence[NDArray[Any]]
"""One slot's part of each of `space.graph.adapters`."""
ReadAdapter = Callable[[str], tuple[str, Packed]]
"""From the path of an adapter's directory to the digest of its files and what a slot holds of it."""


def adapter_names(space: ProgramSpace) -> list[str]:
    """The programs that write a slot, one for layers that are alike, and one for embedding and head."""
    return list(dict(_parts(space)))


def adapter_programs(space: ProgramSpace) -> list[Program]:
    """`(a part's arrays of adapters, what one slot is to hold, slot) -> the arrays`."""
    firsts: dict[str, tuple[int, ...]] = {}
    for name, numbers in _parts(space):
        firsts.setdefault(name, numbers)
    return [_program(space, name, numbers) for name, numbers in firsts.items()]


class AdapterSlots:
    """Adapters that were read, by their digests, and the slots."""

    def __init__(self, space: ProgramSpace, read: ReadAdapter | None) -> None:
        self._space = space
        self._read = read
        self._kept: dict[str, Packed] = {}
        self.arrays: list[jax.Array] = []

    def allocate(self) -> None:
        """Empty slots. The first time this compiles what makes zeros."""
        self.arrays = list(self._space.empty_state.adapter_slots()) if self._space.graph.adapters else []

    def load(self, path: str) -> str:
        """As `Runner.load_adapter`."""
        if self._read is None:
            raise RuntimeError("this engine has no slots for adapters; start it with enable_lora")
        digest, packed = self._read(path)
        self._kept[digest] = packed
        return digest

    def drop(self, digest: str) -> None:
        """As `Runner.drop_adapter`."""
        del self._kept[digest]

    def place(self, digest: str, slot: int, call: Callable[..., Any]) -> None:
        """As `Runner.place_adapter`, by `call` of programs."""
        self._write(self._kept[digest], slot, call)

    def run_once(self, call: Callable[..., Any]) -> None:
        """Call each program, of which nothing is left."""
        if self.arrays:
            self._write([np.zeros(struct.shape, struct.dtype) for struct in _one_slot(self._space)], 1, call)

    def free(self) -> None:
        """Give the device's memory back."""
        for array in self.arrays:
            if not array.is_deleted():
                array.delete()

    def _write(self, values: Packed, slot: int, call: Callable[..., Any]) -> None:
        space = self._space
        if not 1 <= slot <= self.arrays[0].shape[0]:
            raise ValueError(f"adapter slots are 1 to {self.arrays[0].shape[0]}, got {slot}")
        number = put(np.int32(slot - 1), space.replicated)
        structs, first = _one_slot(space), len(space.parameters)
        for name, numbers in _parts(space):
            own = [index - first for index in numbers]
            given = tuple(put(values[index], structs[index].sharding) for index in own)
            written = call(name, tuple(self.arrays[index] for index in own), given, number)
            for index, array in zip(own, written, strict=True):
                self.arrays[index] = array


def _parts(space: ProgramSpace) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The parts of a model that have adapters: the program that writes them, and the numbers of their arrays."""
    parts = space.parts
    for alike, numbers in zip(parts.alike, parts.adapters, strict=True):
        if numbers:
            yield f"write adapters {alike}", numbers
    if outer := (*parts.looking, *parts.scoring):
        yield "write adapters outer", outer


def _program(space: ProgramSpace, name: str, numbers: tuple[int, ...]) -> Program:
    first = len(space.parameters)
    arrays = space.structs(numbers)

    def write(arrays: tuple[jax.Array, ...], values: tuple[jax.Array, ...], slot: jax.Array) -> tuple[jax.Array, ...]:
        written = (
            jax.lax.dynamic_update_index_in_dim(array, value, slot, 0)
            for array, value in zip(arrays, values, strict=True)
        )
        return tuple(
            array if struct.sharding is None else jax.lax.with_sharding_constraint(array, struct.sharding)
            for array, struct in zip(written, space.structs(numbers), strict=True)
        )

    values = tuple(_one_slot(space)[number - first] for number in numbers)
    return space.program(
        name,
        write,
        (arrays, values, space.replicated_struct((), np.int32)),
        kind=ProgramKind.WRITE,
        donate=(0,),
        facts={},
    )


def _one_slot(space: ProgramSpace) -> list[jax.ShapeDtypeStruct]:
    """Of each array what is one slot's."""

    def part(struct: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        sharding = struct.sharding
        own = None if sharding is None else NamedSharding(sharding.mesh, PartitionSpec(*sharding.spec[1:]))
        return jax.ShapeDtypeStruct(struct.shape[1:], struct.dtype, sharding=own)

    return [part(struct) for struct in space.graph.adapters.values()]
