"""The engine of `benchmarks/idle.py`: its device is a clock, on which a step takes the same time always; no model."""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from jaxengine.contract.batch import Batch, StepResult
from jaxengine.contract.messages import Begin, Event
from jaxengine.contract.rows import Sample

if TYPE_CHECKING:
    from jaxengine.startup.engine import HostedEngine

STORY = """Once upon a time there was a little fox who lived near the big river. One day the fox found a red ball under a tree.
"Whose ball is this?" asked the fox. A small bird said: "It is mine, but I cannot carry it." So they rolled it home together, and
the mother of the bird was so happy that she gave them both a warm cake with 3 berries. After that they played every morning. """
WARM_UP_STEPS = 20
NEARLY_ALL = 0.9
"""Of the streams: where clients fall behind, some rest until they have read what there is."""
ASKED = "JAXENGINE_BENCHMARK_IDLE"
"""A variable of the environment: milliseconds of a step, streams, and the file for what the device saw, as JSON."""


class Launched(NamedTuple):
    """When a step was launched and is done, how many rows it decoded, the tokens it brought, and processor seconds of thread and
    process by then."""

    begun: float
    done: float
    decoded: int
    tokens: int
    thread_s: float
    process_s: float


class Clock:
    """A device on which every step takes `seconds`; `steps` keeps what became of them, which `close` writes to `file`."""

    max_in_flight = 2

    def __init__(self, seconds: float, story: list[int], *, streams: int, file: Path) -> None:
        self.steps: list[Launched] = []
        self._seconds = seconds
        self._story = np.array(story, np.int32)
        self._streams = streams
        self._file = file
        self._places = np.zeros(0, np.int64)
        self._done = 0.0

    def launch(self, batch: Batch) -> Step:
        """Each row goes on in the story, at a place of its own. Of its drafts none to three are right, by turns."""
        counts = [want.last if isinstance(want, Sample) else int(want is not None) for want in batch.rows.wants]
        rows, kept = len(counts), sum(counts)
        if kept == rows:
            return self.begin(kept, rows if batch.num_tokens == rows else 0)
        places, number, wrong = 0, len(self.steps), []
        for slot, count in zip(batch.rows.slots, counts, strict=True):
            wrong += range(places + min(1 + (number + slot) % 4, count), places + count)
            places += count
        return self.begin(kept, rows if batch.num_tokens == kept else 0, wrong)

    def begin(self, sampled: int, decoded: int, wrong: Sequence[int] = ()) -> Step:
        """A step that yields `sampled` tokens, of which those at the places `wrong` stand behind a draft that is not right."""
        now = time.perf_counter()
        self._done = max(now, self._done) + self._seconds
        self.steps.append(
            Launched(now, self._done, decoded, sampled - len(wrong), time.thread_time(), time.process_time())
        )
        if sampled > len(self._places):
            # np.arange lets go of the interpreter: not in every step, where that would be counted as the engine's.
            self._places = 31 * np.arange(sampled)
        places = (len(self.steps) + self._places[:sampled]) % len(self._story)
        tokens = self._story[places]
        if wrong:
            tokens[wrong] = -1
        return Step(self._done, StepResult(tokens, (None,) * sampled))

    def close(self) -> None:
        """Write down what became of the steps. Closing twice is fine."""
        self._file.write_text(json.dumps(seen(self.steps, streams=self._streams)))


class Step:
    """A step that is done at a time."""

    def __init__(self, done: float, result: StepResult) -> None:
        self._done = done
        self._result = result

    def wait(self) -> StepResult:
        time.sleep(max(0.0, self._done - time.perf_counter()))
        return self._result


def seen(steps: Sequence[Launched], *, streams: int) -> dict[str, Any]:
    """Of the steps from the first to the last in which nearly all streams decode; nothing where there are too few."""
    whole = [number for number, step in enumerate(steps) if step.decoded >= NEARLY_ALL * streams]
    steady = steps[whole[0] + WARM_UP_STEPS : whole[-1] + 1] if whole else []
    if len(steady) < 2:
        return {}
    idle = [max(0.0, after.begun - before.done) for before, after in pairwise(steady)]
    count, wall = len(idle), steady[-1].done - steady[0].done
    return {
        "steps": count,
        "whole_steps": sum(step.decoded >= NEARLY_ALL * streams for step in steady),
        "idle_share": round(sum(idle) / wall, 4),
        "idle_ms": summary(idle),
        "tokens_per_s": round(sum(step.tokens for step in steady[1:]) / wall),
        "engine_thread_cpu_ms_per_step": round(1000 * (steady[-1].thread_s - steady[0].thread_s) / count, 3),
        "engine_process_cpu_ms_per_step": round(1000 * (steady[-1].process_s - steady[0].process_s) / count, 3),
    }


def summary(seconds: list[float]) -> dict[str, float]:
    """Median and 99th percentile in milliseconds."""
    ordered = sorted(1000 * value for value in seconds)
    return {"p50": round(statistics.median(ordered), 3), "p99": round(ordered[int(0.99 * (len(ordered) - 1))], 3)}


def build_engine(begin: Begin, emit: Callable[[Event], None] | None = None) -> HostedEngine:
    """The embedded model's engine, with a clock in the place of its device."""
    from jaxengine.startup.build import build_engine

    engine = build_engine(begin.config, tell=emit)
    milliseconds, streams, file = json.loads(os.environ[ASKED])
    assert engine.front.tokenizer is not None
    story = engine.front.tokenizer.encode(STORY, add_special_tokens=False)
    engine.core._runner = Clock(milliseconds / 1000, story, streams=streams, file=Path(file))  # type: ignore[assignment]
    return engine


def main(descriptor: int) -> None:
    """The life of the engine's process."""
    from jaxengine.startup.engine_process import serve

    serve(descriptor, lambda begin, emit: build_engine(begin, emit).host)
