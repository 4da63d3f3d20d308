"""From one mesh of a pipeline to another: copies on one host, and between hosts programs that those of both sides launch.

Between hosts a collective is what every platform has. Its mesh are the devices of both sides, and an array of it is one of each
side behind the other, so that each device has the part that lies there anyway; the first half's go to the second's. What the
second half holds before is never read: zeros, which stay there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxengine.device.runtime import memory
from jaxengine.device.runtime.program_kinds import ProgramKind
from jaxengine.device.runtime.space import ProgramSpace
from jaxengine.device.runtime.transfer import put
from xla_cache import Program

if TYPE_CHECKING:
    from jaxengine.device.runtime.forward import Call

SIDE = "side"
"""The axis of a mesh along which arrays are sent: from 0 to 1."""


@dataclass(frozen=True)
class Passage:
    """Arrays that lie on the mesh of `source`, and are to lie on that of `target` as `structs` say, none of them a scalar."""

    name: str
    source: ProgramSpace
    target: ProgramSpace
    structs: Any

    @property
    def crosses(self) -> bool:
        """Whether the two meshes are of different hosts, which then have no devices of the other one."""
        return self.source.device_layout.hosts != self.target.device_layout.hosts

    @cached_property
    def mesh(self) -> Mesh:
        """The devices of both."""
        source, target = self.source.device_layout, self.target.device_layout
        if source.mesh is None or target.mesh is None:
            return Mesh(np.array([source.device, target.device]), (SIDE,))
        return Mesh(np.stack([source.mesh.devices, target.mesh.devices]), (SIDE, *target.mesh.axis_names))

    @cached_property
    def both(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        """Each array with its like behind it, on the devices of both."""

        def struct(leaf: Any) -> jax.ShapeDtypeStruct:
            of_side = leaf.sharding.spec if isinstance(leaf.sharding, NamedSharding) else PartitionSpec()
            first, *others = of_side or (None,)
            axes = () if first is None else (first,) if isinstance(first, str) else first
            sharding = NamedSharding(self.mesh, PartitionSpec((SIDE, *axes), *others))
            return jax.ShapeDtypeStruct((2 * leaf.shape[0], *leaf.shape[1:]), leaf.dtype, sharding=sharding)

        return tuple(map(struct, jax.tree.leaves(self.structs)))

    def programs(self) -> Iterator[Program]:
        """`(arrays of both) -> the same, sent`, where it is needed."""
        if not self.crosses:
            return
        specs = tuple(struct.sharding.spec for struct in self.both)

        def send(*parts: jax.Array) -> tuple[jax.Array, ...]:
            return tuple(jax.lax.ppermute(part, SIDE, [(0, 1)]) for part in parts)

        sent = jax.shard_map(send, mesh=self.mesh, in_specs=specs, out_specs=specs, check_vma=False)
        program = self.target.program(self.name, sent, self.both, kind=ProgramKind.PASS, facts={})
        yield replace(program, mesh=self.mesh, device=None)

    @property
    def standing_bytes(self) -> int:
        """What a device of the target holds for it."""
        return sum(map(memory.shard_bytes, jax.tree.leaves(self.structs))) if self.crosses else 0


class Way:
    """A passage of this host's arrays."""

    def __init__(self, passage: Passage) -> None:
        self._passage = passage
        self.crosses = passage.crosses
        self._takes_part = passage.source.here or passage.target.here
        self._structs, self._tree = jax.tree.flatten(passage.structs)
        receives = self.crosses and passage.target.here
        self._zeros = [put(np.zeros(s.shape, s.dtype), s.sharding) for s in self._structs] if receives else None

    def take(self, call: Call, values: Any) -> Any:
        """The values where they are to be, through `call`; on hosts that have no part of it there, what was given."""
        if not self._takes_part:
            return values
        if not self.crosses:
            return jax.device_put(values, jax.tree.map(lambda struct: struct.sharding, self._passage.structs))
        given = jax.tree.leaves(values) if self._zeros is None else self._zeros
        both = [_of_parts(struct, array) for struct, array in zip(self._passage.both, given, strict=True)]
        sent = call(self._passage.name, *both)
        if self._zeros is None:
            return values
        return jax.tree.unflatten(self._tree, map(_of_parts, self._structs, sent))


def _of_parts(struct: jax.ShapeDtypeStruct, array: jax.Array) -> jax.Array:
    """An array of this host's parts of another."""
    parts = [shard.data for shard in array.addressable_shards]
    return jax.make_array_from_single_device_arrays(struct.shape, struct.sharding, parts)
