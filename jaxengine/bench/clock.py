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

    @property
    def resumes_at(self) -> float | None:
        """When something comes that it waits for beside its steps; None where there is nothing."""
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


class Timeline:
    """One engine and its device: what the time is there, and what is in flight.

    Args:
        make: the engine, given its clock.
        device: what a step lasts.
        served: is told of everything; several timelines may share one.
        host_s: what the host needs for a step before it is launched, the device idle or not.
        done: called with the number of requests that ended in a step.
        launched: called with every step and the seconds that it takes of the device.

    Attributes:
        now: seconds.
        tokens: of each request that has not ended, those of its prompt and its output.
    """

    def __init__(
        self,
        make: Callable[[Callable[[], float]], Engine],
        device: Device,
        served: Served,
        *,
        host_s: float = 0.0,
        done: Callable[[int], object] = lambda count: None,
        launched: Callable[[Step, float], object] = lambda step, seconds: None,
    ) -> None:
        self.now = 0.0
        self.tokens: dict[int, int] = {}
        self.engine = make(lambda: self.now)
        served.programs = self.engine.programs
        self._device = device
        self._served = served
        self._host_s = host_s
        self._done = done
        self._launched = launched
        self._free = 0.0
        self._began: dict[int, float] = {}
        self._latest: dict[int, float] = {}
        self._flight: deque[tuple[float, Step]] = deque()

    def add(self, number: int, arrival: Arrival, due: float) -> None:
        """Let a request wait, that came at the time `due`."""
        self.engine.add(number, arrival)
        self._began[number] = due
        self.tokens[number] = arrival.prompt

    def run_until(self, time: float) -> None:
        """Work until it is `time`, or later where a step then ends later."""
        while self.now < time and self.advance():
            pass
        self.now = max(self.now, time)

    def advance(self) -> bool:
        """Launch a step, or wait for one; False when there is nothing to do."""
        if len(self._flight) < self.engine.in_flight and (step := self.engine.schedule()) is not None:
            self._launch(step)
        elif self._flight:
            self._take(*self._flight.popleft())
        elif (resumes_at := self.engine.resumes_at) is not None:
            self.now = max(self.now, resumes_at)
        else:
            return False
        return True

    def _launch(self, step: Step) -> None:
        self.now += self._host_s
        seconds = self._device.seconds(step.launches, step.sampled)
        self._free = max(self.now, self._free) + seconds
        self._flight.append((self._free, step))
        served = self._served
        served.steps += 1
        served.launches += len(step.launches)
        served.places += sum(launch.places for launch in step.launches)
        served.tokens += step.tokens
        served.device_s += seconds
        self._launched(step, seconds)

    def _take(self, end: float, step: Step) -> None:
        self.now = now = max(self.now, end)
        served, ended = self._served, 0
        for request, count, finished in self.engine.commit(step):
            served.outputs += count
            self.tokens[request] += count
            before = self._latest.get(request)
            if before is None:
                served.first_token_s.append(now - self._began.pop(request))
            else:
                served.between_s.append(now - before)
            self._latest[request] = now
            if finished:
                del self._latest[request], self.tokens[request]
                ended += 1
        served.requests += ended
        served.wall_s = max(served.wall_s, now)
        if ended:
            self._done(ended)


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
    """Replay `arrivals`, `speed` times as fast as recorded; None has a request there whenever the engine can take it.

    Other arguments are those of `Timeline`.
    """
    served = Served()
    line = Timeline(make, device, served, host_s=host_s, done=done, launched=launched)
    for number, arrival in enumerate(arrivals):
        if speed is None:
            while line.engine.num_waiting >= AHEAD and line.advance():
                pass
            line.add(number, arrival, line.now)
        else:
            line.run_until(due := arrival.time_s / speed)
            line.add(number, arrival, due)
    while line.advance():
        pass
    return served


def _percentiles(seconds: array[float]) -> dict[str, float]:
    values = np.percentile(np.frombuffer(seconds), (50, 90, 99)) if seconds else np.zeros(3)
    return {f"p{share}": round(float(value) * 1e3, 1) for share, value in zip((50, 90, 99), values, strict=True)}
