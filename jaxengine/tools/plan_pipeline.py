"""What each stage of a pipeline has and what passes between them, as `jaxengine plan` says it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import jax
import numpy as np

from jaxengine.device.runtime import memory
from jaxengine.device.runtime.forward_programs import between
from jaxengine.device.runtime.space import ProgramSpace

GIB = 1 << 30


@dataclass(frozen=True)
class StagePlan:
    """Layers `first` to `last` on so many devices, of these hosts. Each device holds these bytes of weights, pages, and states
    of sequences."""

    first: int
    last: int
    devices: int
    weight_bytes: int
    kv_bytes: int
    slot_bytes: int
    hosts: tuple[int, ...] = (0,)


@dataclass(frozen=True)
class PipelinePlan:
    """The stages. To the next one goes `place_bytes` for each place of a step: the residual stream, and what all layers share;
    from the last to the first `returned_bytes` a step: the last token of every sequence. In a step each device of a stage sends
    one of the next its part, `sent_bytes` in the largest."""

    stages: tuple[StagePlan, ...]
    place_bytes: int
    returned_bytes: int
    step_places: int
    sent_bytes: int

    @property
    def crossings(self) -> tuple[tuple[int, int], ...]:
        """The hosts between which steps pass: of a device of one, and of its like in the next stage."""
        pairs = zip(self.stages, self.stages[1:], strict=False)
        return tuple(
            pair for one, other in pairs for pair in zip(one.hosts, other.hosts, strict=True) if len({*pair}) > 1
        )

    @property
    def step_bytes(self) -> int:
        """What passes to the next stage in the largest step."""
        return self.place_bytes * self.step_places


def plan_pipeline(space: ProgramSpace) -> PipelinePlan | None:
    """None where there is one stage."""
    if space.pipeline is None:
        return None
    places = space.grid.max_tokens
    sent = jax.tree.leaves(between(space.views[-1], places))
    return PipelinePlan(
        stages=tuple(map(_stage, space.views)),
        place_bytes=sum(map(_bytes, sent)) // places,
        returned_bytes=_bytes(space.slots.last_token),
        step_places=places,
        sent_bytes=sum(map(memory.shard_bytes, sent)),
    )


def lines(plan: PipelinePlan) -> Iterator[str]:
    """The plan as text, line by line."""
    yield f"{len(plan.stages)} stages, and on each of their devices:"
    for number, stage in enumerate(plan.stages):
        of_hosts = (
            f" of host{'s' * (len(stage.hosts) > 1)} {', '.join(map(str, stage.hosts))}" if plan.crossings else ""
        )
        yield (
            f"  stage {number}: layers {stage.first} to {stage.last} on {stage.devices} device{'s' * (stage.devices > 1)}"
            f"{of_hosts}, weights {stage.weight_bytes / GIB:.2f} GiB, KV pages {stage.kv_bytes / GIB:.2f} GiB, "
            f"state of sequences {stage.slot_bytes / GIB:.2f} GiB"
        )
    yield (
        f"  to the next stage pass {plan.place_bytes / 1e3:.1f} kB for each place of a step ({plan.step_bytes / 1e6:.1f} MB of "
        f"{plan.step_places}), from the last to the first {plan.returned_bytes} bytes"
    )
    if plan.crossings:
        devices = plan.stages[0].devices // len(plan.stages[0].hosts)
        pairs = ", ".join(f"{one} to {other}" for one, other in plan.crossings)
        yield (
            f"  from host {pairs} each of {devices} device{'s' * (devices > 1)} sends its part: {plan.sent_bytes / 1e6:.1f} MB "
            f"in the largest step, {devices * plan.sent_bytes / 1e6:.1f} MB in all"
        )


def _stage(view: ProgramSpace) -> StagePlan:
    mesh = view.device_layout.mesh
    return StagePlan(
        first=view.layers.start,
        last=view.layers.stop - 1,
        devices=1 if mesh is None else mesh.size,
        weight_bytes=memory.parameter_bytes(view.own_structs),
        kv_bytes=sum(map(memory.shard_bytes, view.kv_pages)),
        slot_bytes=memory.slot_bytes((view.slots if view.ends else (), view.states, view.snapshots)),
        hosts=tuple(sorted(view.device_layout.hosts)),
    )


def _bytes(struct: jax.ShapeDtypeStruct) -> int:
    return math.prod(struct.shape) * np.dtype(struct.dtype).itemsize
