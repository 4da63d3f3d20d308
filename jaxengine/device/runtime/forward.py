"""Runs the forward pass of a step: its stages in order, each on what the one before left (`forward_programs.py`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import jax

from buckets import Bucket
from jaxengine.device.layers.cache import Cache
from jaxengine.device.layers.pooler import Pooled
from jaxengine.device.runtime.forward_programs import Kept, passages
from jaxengine.device.runtime.inputs import StepLayout
from jaxengine.device.runtime.mesh_caches import part_of_mesh, with_mesh
from jaxengine.device.runtime.passing import Way
from jaxengine.device.runtime.space import ProgramSpace
from jaxengine.device.runtime.stages import place_of, stages

if TYPE_CHECKING:
    from jaxengine.device.runtime.executables import Executables

Call = Callable[..., Any]
"""`(name, *arguments) -> results` of the program of that name."""


class ForwardPass:
    """Runs the forward pass of any bucket with one model's parameters, in the order of `space.parameters`.

    Steps with adapters go through those that `adapt` has brought.
    """

    def __init__(self, space: ProgramSpace, parameters: Sequence[jax.Array]) -> None:
        self._last: Any = None
        self._stages = [
            (
                stage,
                tuple(parameters[place] for place in stage.space.places(stage.parameters)),
                place_of(stage, parameters),
            )
            for stage in stages(space)
        ]
        self._ways = {place: Way(passage) for place, passage in passages(space).items()}
        self._last_crossed = max((mesh for (_, mesh), way in self._ways.items() if way.crosses), default=None)
        self._names = {
            layout: {
                number: stage.program_name(layout)
                for number, (stage, _, _) in enumerate(self._stages)
                if bucket in stage.buckets
            }
            for bucket in space.grid.buckets
            for layout in space.layouts(bucket)
        }
        self._adapters: list[tuple[jax.Array, ...]] = [() for _ in self._stages]
        self._looped = tuple(parameters) if any(stage.loops for stage, _, _ in self._stages) else ()
        self.scoring: tuple[jax.Array, ...] = ()
        self._space = space
        self.outer = tuple(parameters[number] for number in space.outer)

    def __del__(self) -> None:
        self.wait()

    def wait(self) -> None:
        """Wait for passes that read parameters of which XLA does not know (`layer_loop.py`): then these may be freed."""
        for array in jax.tree.leaves(self._last):
            with suppress(RuntimeError):  # the pass failed, and is over, too
                array.block_until_ready()

    def adapt(self, arrays: Sequence[jax.Array]) -> None:
        """Bring the arrays of adapters, in the order of `space.graph.adapters`."""
        first = len(self._space.parameters)
        self._adapters = [tuple(arrays[number - first] for number in stage.adapters) for stage, _, _ in self._stages]
        self.scoring = tuple(arrays[number - first] for number in self._space.parts.scoring)

    def exists(self, bucket: Bucket, executables: Executables) -> bool:
        """Whether all programs of a bucket are there."""
        names = (name for layout in self._space.layouts(bucket) for name in self.calls(layout))
        return bucket in self._space.grid.buckets and all(name in executables for name in names)

    def calls(self, layout: StepLayout) -> Counter[str]:
        """How often a pass calls each program that this host launches."""
        return Counter(name for number, name in self._names[layout].items() if self._stages[number][0].space.here)

    def run(
        self,
        call: Call,
        layout: StepLayout,
        cache: Cache,
        last_token: jax.Array | None,
        buffers: Sequence[jax.Array],
        *,
        pool: jax.Array | None = None,
        only: int | None = None,
        before_last: Callable[[], None] | None = None,
    ) -> tuple[Kept | Pooled, Cache]:
        """What leaves the last stage, and the cache, of a step that each mesh has in one of `buffers`, through `call`.

        `pool` are the embeddings of what prompts show. With `only` each program is called once, for this one of the stages that
        it serves. `before_last` is called before the step comes to the last of several hosts. A host runs what it has meshes for:
        one without the last gives what leaves the last of its own.
        """
        x: Any = last_token if pool is None else (last_token, pool)
        shared: Any = None
        streams: dict[int, Any] = {}
        names, count, mesh = self._names[layout], len(self._space.views), 0
        for number in names if only is None else _once_each(names, only):
            stage, parameters, place = self._stages[number]
            if stage.mesh != mesh:
                mesh = stage.mesh
                way = self._ways[layout.bucket.tokens, mesh]
                if mesh == self._last_crossed and before_last is not None:
                    before_last()
                x, shared = way.take(call, (x, shared))
            if not stage.space.here:
                continue
            streams[stage.first] = x
            parameters = parameters + self._adapters[number] if layout.adapters else parameters
            part = stage.part_of(part_of_mesh(cache, mesh, count))
            x, made, changed = call(names[number], parameters, x, shared, part, buffers[mesh], place)
            shared = made if stage.begins else shared
            cache = cache if changed is None else with_mesh(cache, changed, mesh, count)
        ended: Any = x  # the residual stream has become what the last stage gives
        if self._space.layer_by_layer and self._space.taps:
            hidden, fields, _ = ended
            # where not all stages were called, the last stream will do
            ended = hidden, fields, tuple(streams.get(tap, streams[max(streams)]) for tap in self._space.taps)
        if self._looped:
            self._last = ended  # a pass takes the cache that the one before it left, and so ends after it
        return ended, cache


def _once_each(names: Mapping[int, str], which: int) -> list[int]:
    """Of the stages of each name one."""
    served: dict[str, list[int]] = {}
    for number, name in names.items():
        served.setdefault(name, []).append(number)
    return [numbers[which % len(numbers)] for numbers in served.values()]
