"""The engine's loop over a device that is a clock: one step after the other, each as long as it says."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from jaxengine.bench.traffic import Arrival

AHEAD = 64
"""Requests that wait in an engine which is saturated: enough to choose from, few enough not to keep all prompts in memory."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One program that runs the layers once.

    `context` is the sum of the positions that rows of one token attend to, `prompts` are `(start, tokens)` of the other rows.
    `tile` is how many places of a prompt attention works on at a time, None what the device's kernel likes.
    """

    places: int
    context: int
    prompts: Sequence[tuple[int, int]]
    tile: int | None = None


class Device(Protocol):
    """What a step lasts."""

    def seconds(self, launches: Iterable[Launch], sampled: int) -> float:
        """How long the launches of a step last, and the sampling of `sampled` rows."""
        ...


@dataclass(frozen=True, slots=True)
class Step:
    """What an engine launches at once; `tokens` are real ones, `plan` is the engine's own."""

    launches: Sequence[Launch]
    sampled: int
    tokens: int
    plan: Any


class Engine(Protocol):
    """A scheduler as the loop sees it: it may plan `in_flight` steps before the first of them is known.

    `programs` are those that run the model's layers.
    """

    programs: int
    in_flight: int

    @property
    def num_waiting(self) -> int:
        """Requests that wait."""
        ...

    def add(self, number: int, arrival: Arrival) -> None:
        """Let a request wait."""
        ...

    def schedule(self) -> Step | None:
        """The next step, None when there is nothing to compute now."""
        ...

    def commit(self, step: Step) -> Iterable[tuple[int, int, bool]]:
        """Which requests got how many tokens from the oldest step in flight, and whether they are done."""
        ...


@dataclass
class Served:
    """What serving a trace came to. Times are in seconds."""

    programs: int = 0
    requests: int = 0
    steps: int = 0
    launches: int = 0
    places: int = 0
    tokens: int = 0
    outputs: int = 0
    device_s: float = 0.0
    wall_s: float = 0.0
    first_token_s: array[float] = field(default_factory=lambda: array("d"))
    between_s: array[float] = field(default_factory=lambda: array("d"))

    @property
    def rate(self) -> float:
        """Requests a second."""
        return self.requests / self.wall_s

    def report(self) -> dict[str, Any]:
        """The figures, rounded for reading."""
        return {
            "programs": self.programs,
            "requests": self.requests,
            "device_s": round(self.device_s, 1),
            "wall_s": round(self.wall_s, 1),
            "output_tokens_per_s": round(self.outputs / self.wall_s, 1),
            "requests_per_s": round(self.rate, 3),
            "steps": self.steps,
            "launches": self.launches,
            "computed_tokens": self.tokens,
            "padding": round(self.places / self.tokens - 1, 4),
            "first_token_ms": _percentiles(self.first_token_s),
            "between_tokens_ms": _percentiles(self.between_s),
        }


def serve(
    make: Callable[[Callable[[], float]], Engine],
    arrivals: Sequence[Arrival],
    device: Device,
    *,
    speed: float | None,
    host_s: float = 0.0,
    done: Callable[[int], object] = lambda count: None,
    launched: Callable[[Step, float], object] = lambda step, seconds: None,
) -> Served:
    """Replay `arrivals`.

    Args:
        make: the engine, given its clock.
        speed: how many times as fast as recorded requests arrive; None has one there whenever the engine can take it.
        host_s: what the host needs for a step before it is launched, the device idle or not.
        done: called with the number of requests that ended in a step.
        launched: called with every step and the seconds that it takes of the device.
    """
    served = Served()
    now = free = 0.0
    engine = make(lambda: now)
    served.programs = engine.programs
    began: dict[int, float] = {}
    latest: dict[int, float] = {}
    flight: deque[tuple[float, Step]] = deque()
    number, total = 0, len(arrivals)
    while True:
        while number < total:
            due = 0.0 if speed is None else arrivals[number].time_s / speed
            if due > now or (speed is None and engine.num_waiting >= AHEAD):
                break
            engine.add(number, arrivals[number])
            began[number] = now if speed is None else due
            number += 1
        if len(flight) < engine.in_flight and (step := engine.schedule()) is not None:
            now += host_s
            seconds = device.seconds(step.launches, step.sampled)
            free = max(now, free) + seconds
            flight.append((free, step))
            served.steps += 1
            served.launches += len(step.launches)
            served.places += sum(launch.places for launch in step.launches)
            served.tokens += step.tokens
            served.device_s += seconds
            launched(step, seconds)
            continue
        if not flight:
            if number == total:
                break
            now = arrivals[number].time_s / speed if speed else now
            continue
        end, step = flight.popleft()
        now = max(now, end)
        ended = 0
        for request, count, finished in engine.commit(step):
            served.outputs += count
            before = latest.get(request)
            if before is None:
                served.first_token_s.append(now - began.pop(request))
            else:
                served.between_s.append(now - before)
            latest[request] = now
            if finished:
                del latest[request]
                ended += 1
        served.requests += ended
        if ended:
            done(ended)
    served.wall_s = now
    return served


def _percentiles(seconds: array[float]) -> dict[str, float]:
    values = np.percentile(np.frombuffer(seconds), (50, 90, 99)) if seconds else np.zeros(3)
    return {f"p{share}": round(float(value) * 1e3, 1) for share, value in zip((50, 90, 99), values, strict=True)}
