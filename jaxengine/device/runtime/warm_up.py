"""Every program run once before the first request, and what steps take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from buckets import Bucket
from jaxengine.contract.draft_costs import DraftCosts
from jaxengine.device.layers.pooler import Pooled
from jaxengine.device.runtime.drafting import draft_name, place_name
from jaxengine.device.runtime.empty_state import zeroed
from jaxengine.device.runtime.forward import Call
from jaxengine.device.runtime.forward_programs import Kept
from jaxengine.device.runtime.inputs import StepLayout
from jaxengine.device.runtime.launcher import Launcher
from jaxengine.device.runtime.program_times import ProgramTimes
from jaxengine.device.runtime.slot_state import sink_writes
from jaxengine.device.sampling import Variant


@dataclass(frozen=True)
class StepTimes:
    """The seconds of a step of each bucket that exists, without keys and values to read, and what drafts take."""

    seconds: Mapping[Bucket, float]
    drafts: DraftCosts


def warm_up(launcher: Launcher) -> None:
    """Run every program that exists once on dummy rows, which write to the sinks only: compiled is not yet warm.

    Raises:
        BundleError: a program of a required bundle does not run.
    """
    first = FirstCalls(launcher)
    space = launcher.space
    states: dict[bool, Kept] = {}
    for layout in (layout for bucket in existing_buckets(launcher) for layout in space.layouts(bucket)):
        step = dummy_step(launcher, layout, places=1)
        state = launcher.forward(layout, step, call=first, only=0)
        if not isinstance(state, tuple):
            continue
        if launcher.samples:
            states[state[1].adapters is not None] = state
        _draft(launcher, layout, step[-1], state, first)
    launcher.run_others_once(first)
    launcher.write(sink_writes(space), first)
    for shape in space.sampling.shapes:
        if shape.adapters in states and launcher.sampler.exists(shape):
            launcher.sample(shape, *states[shape.adapters][:2], first)


def time_steps(launcher: Launcher) -> StepTimes:
    """What steps of programs that are warm take, the least of several times. Of layers that are alike one is timed.

    Engines with drafts take more time for it: how many drafts are worth it is decided by small differences.
    """
    space = launcher.space
    times = ProgramTimes(launcher.call, on_threads=space.platform == "cpu" and jax.process_count() == 1)
    layouts = {bucket: space.layout(bucket) for bucket in existing_buckets(launcher)}
    for again in times.rounds(7, most_s=2.0) if space.num_drafts else times.rounds(3, most_s=0.5):
        state: Kept | Pooled | None = None
        for number, layout in enumerate(layouts.values()):
            # another layer each time: what a step reads is in no cache
            step = dummy_step(launcher, layout)
            state = launcher.forward(layout, step, call=times, only=1 + number + again)
            if isinstance(state, tuple):
                _draft(launcher, layout, step[-1], state, times)
        greedy = [shape for shape in space.sampling.shapes if shape.variant is Variant.GREEDY and not shape.adapters]
        for shape in greedy:
            if launcher.samples and isinstance(state, tuple) and launcher.sampler.exists(shape):
                launcher.sample(shape, *state[:2], times)
    least = times.least
    drafting = {bucket: layout for bucket, layout in layouts.items() if draft_name(layout) in least}
    drafts = DraftCosts(
        {bucket: least[place_name(layout)] + least[draft_name(layout)] for bucket, layout in drafting.items()},
        {shape.rows: least[shape.name] for shape in space.sampling.shapes if shape.name in least},
    )
    return StepTimes({bucket: _step_seconds(launcher, bucket, least) for bucket in layouts}, drafts)


def existing_buckets(launcher: Launcher) -> Sequence[Bucket]:
    """Those whose programs are there."""
    buckets = launcher.space.grid.buckets
    return [bucket for bucket in buckets if launcher.passing.exists(bucket, launcher.executables)]


def dummy_step(launcher: Launcher, layout: StepLayout, *, places: int | None = None) -> Sequence[jax.Array]:
    """A step without rows, of which all kept places are sampled: they are the sink's. All places count as used.

    With `places` so many, which is enough to run a program once.
    """
    buffer = np.zeros(layout.size, np.int32)
    layout.view(buffer, "count")[...] = launcher.space.kept if places is None else places
    layout.view(buffer, "used")[...] = layout.bucket.tokens if places is None else places
    return launcher.put_everywhere(buffer)


@dataclass(frozen=True)
class FirstCalls:
    """Calls a program for the first time, and waits. One that was loaded and does not run is compiled after all."""

    launcher: Launcher

    def __call__(self, name: str, *arguments: Any) -> Any:
        try:
            return jax.block_until_ready(self.launcher.call(name, *arguments))
        except Exception as error:
            if not self.launcher.executables.compile_again(name, error):
                raise
            # the call that failed may have consumed the arguments that are donated, which hold nothing yet
            whole = jax.tree.map(lambda value: zeroed(value)() if _is_deleted(value) else value, arguments)
            return jax.block_until_ready(self.launcher.call(name, *whole))


def _draft(launcher: Launcher, layout: StepLayout, buffer: jax.Array, state: Kept, call: Call) -> None:
    """What drafts need beside a step, once, where the device drafts."""
    if launcher.space.draft is not None:
        launcher.drafter.place_all(call, layout, launcher.slots, buffer)
        launcher.draft(layout, buffer, state[2], call)


def _step_seconds(launcher: Launcher, bucket: Bucket, seconds: Mapping[str, float]) -> float:
    space = launcher.space
    rows = launcher.sampler.shape(min(bucket.batch, space.kept), Variant.GREEDY)
    calls = launcher.passing.calls(space.layout(bucket))
    passing = sum(times * seconds[name] for name, times in calls.items())
    layers_here = sum(len(view.layers) for view in space.views if view.here)
    passing *= len(space.parts.layers) / layers_here  # what other hosts have takes about as long
    return passing + seconds.get(rows.name, 0.0)  # nothing is sampled of a model without logits


def _is_deleted(value: Any) -> bool:
    return isinstance(value, jax.Array) and value.is_deleted()
