"""Host time of a step while N sequences decode, on a device that takes none: no model. JSON out.

`outputs` (ids only, no tokenizer) and `statistics` (what a server's metrics cost) are reported beside the three phases that
every step has. Steps overlap as in the engine: one is scheduled before the one before it is committed.

python benchmarks/host_overhead.py --sequences 256 --steps 400
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from collections import defaultdict
from pathlib import Path

import numpy as np

from jaxengine.bench import machine

sys.path.append(str(Path(__file__).resolve().parents[1]))  # last: PYTHONPATH may name another commit

from buckets import Bucket, Grid
from jaxengine.contract.batch import Batch, StepResult
from jaxengine.contract.request import Request
from jaxengine.contract.sampling_params import RequestOutputKind, SamplingParams
from jaxengine.contract.step_updates import Gained, StepUpdates
from jaxengine.device.runtime.inputs import FlatRows, KeptPlaces, PageTables, StepLayout, pad
from jaxengine.device.runtime.slot_state import SlotTable
from jaxengine.front.postprocess import Postprocessor, Progress
from jaxengine.front.token_sinks import TokenSinks
from jaxengine.host.engine.recorder import Recorder
from jaxengine.host.kvcache.ledger import Ledger
from jaxengine.host.kvcache.pool import PagePool
from jaxengine.host.scheduler.limits import SchedulerLimits
from jaxengine.host.scheduler.scheduler import Scheduler
from jaxengine.server.telemetry.tally import Tally

VOCAB = 512
PHASES = ("schedule", "pad", "commit")
WARM_UP_STEPS = 20
SPARE_TOKENS = 400
"""What the first sequences generate while the last ones still compute their prompts."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, default=256)
    parser.add_argument("--steps", type=int, default=400, help="decode steps to time")
    parser.add_argument("--prompt-len", type=int, default=64)
    parser.add_argument("--page-size", type=int, default=16)
    parser.add_argument("--max-model-len", type=int, default=4096, help="sets the width of the page table")
    arguments = parser.parse_args()
    measured = measure(arguments)
    print(
        json.dumps(
            {
                "benchmark": "host_overhead",
                "machine": machine.describe(),
                **vars(arguments),
                "milliseconds": {clock: summaries(seconds) for clock, seconds in measured.items()},
            },
            indent=2,
        )
    )


class Stopwatch:
    """Wall time, and processor time of this thread: on a busy machine the first counts what others took."""

    def __init__(self) -> None:
        self.laps: dict[str, dict[str, list[float]]] = {"wall": defaultdict(list), "cpu": defaultdict(list)}
        self._pending: list[tuple[str, float, float]] = []
        self.start()

    def start(self) -> None:
        """Begin a phase."""
        self._wall, self._cpu = time.perf_counter(), time.thread_time()

    def lap(self, phase: str) -> None:
        """End a phase and begin the next."""
        cpu, wall = time.thread_time(), time.perf_counter()
        self._pending.append((phase, wall - self._wall, cpu - self._cpu))
        self.start()

    def end_step(self, *, keep: bool) -> None:
        """Keep or forget the laps since the last step."""
        if keep:
            for phase, wall, cpu in self._pending:
                self.laps["wall"][phase].append(wall)
                self.laps["cpu"][phase].append(cpu)
        self._pending.clear()


class Device:
    """Has a step's tokens at once. What else it did would be in the way of what is timed: in the caches of the processor, too."""

    def launch(self, batch: Batch) -> StepResult:
        """A token for each row that is sampled."""
        kept = len(batch.rows) - batch.rows.wants.count(None)
        return StepResult(((7 * np.arange(kept) + batch.number) % VOCAB).astype(np.int32), (None,) * kept)


def measure(arguments: argparse.Namespace) -> dict[str, dict[str, list[float]]]:
    """Seconds of each phase of every timed step, in which all sequences decode, by clock."""
    sequences, page_size = arguments.sequences, arguments.page_size
    length = arguments.prompt_len + WARM_UP_STEPS + arguments.steps + SPARE_TOKENS
    num_pages = 1 + sequences * -(-length // page_size)
    decode = Bucket(sequences, 1)
    grid = Grid([decode, Bucket(sequences, -(-1024 // sequences))])
    limits = SchedulerLimits(
        max_num_seqs=sequences,
        max_num_batched_tokens=max(2048, 2 * sequences),
    )
    scheduler = Scheduler(limits, grid, Ledger([PagePool(num_pages)], page_size), vocab_size=VOCAB, max_in_flight=2)
    device = Device()
    postprocessor, progress = Postprocessor(None), dict[str, Progress]()
    recorder = Recorder()
    sinks: TokenSinks[None] = TokenSinks(lambda request_id: (None, progress[request_id]))
    recorder.listen(Tally(max_model_len=arguments.max_model_len))
    for number in range(sequences):
        request = make_request(number, arguments)
        scheduler.add(request)
        progress[request.request_id] = postprocessor.begin(request)
        recorder.add(request, 0.0)

    pages_per_row = -(-arguments.max_model_len // page_size)
    layout = StepLayout(decode, pages_per_row=pages_per_row, kept=sequences)
    tables = PageTables(sequences + 1, pages_per_row=pages_per_row, page_size=page_size)
    slots = SlotTable(sequences + 1)
    watch = Stopwatch()
    left = WARM_UP_STEPS + arguments.steps
    before: tuple[Batch, StepResult] | None = None
    gc.collect()
    gc.freeze()  # as an engine does when it has started
    while left:
        watch.start()
        batch = scheduler.schedule()
        watch.lap("schedule")
        assert batch is not None
        slots.begin(batch.begin)
        decoding = batch.rows.tokens.count(None) == sequences
        watch.start()
        tables.write(batch.tables)
        if batch.bucket == decode:
            rows = FlatRows.of(batch.rows)
            kept = KeptPlaces.of(rows)
            order, num_sampled, _ = slots.order(kept)
            pad(layout, rows, kept, order, tables, num_sampled=num_sampled)
            watch.lap("pad")
        result = device.launch(batch)
        if before is not None:
            watch.start()
            updates = scheduler.commit(*before)
            watch.lap("commit")
            take_all(updates, progress, sinks)
            watch.lap("outputs")
            recorder.take(updates, time.monotonic())
            recorder.end_step(before[0], launched=0.0, ready=0.0, more=True)
            watch.lap("statistics")
        before = batch, result
        left -= decoding
        watch.end_step(keep=decoding and left < arguments.steps)
    return watch.laps


def take_all(updates: StepUpdates, progress: dict[str, Progress], sinks: TokenSinks[None]) -> None:
    """What `InlineClient` does with the news of a step; nothing is due before the end."""
    for part in updates.parts:
        if isinstance(part, Gained):
            _, part = sinks.take(part)
        for update in part:
            progress[update.request_id].take(update)


def make_request(number: int, arguments: argparse.Namespace) -> Request:
    """A greedy request with a prompt of its own that outlives the measurement."""
    max_tokens = WARM_UP_STEPS + arguments.steps + SPARE_TOKENS
    return Request(
        request_id=f"request-{number}",
        prompt_token_ids=tuple((number * 31 + i * 7) % VOCAB for i in range(arguments.prompt_len)),
        sampling=SamplingParams(
            temperature=0.0, max_tokens=max_tokens, ignore_eos=True, output_kind=RequestOutputKind.FINAL_ONLY
        ),
        max_tokens=max_tokens,
        eos_token_id=0,
    )


def summaries(seconds: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    """Each phase, and the three that every step has together."""
    total = [sum(step) for step in zip(*(seconds[phase] for phase in PHASES), strict=True)]
    return {**{phase: summary(values) for phase, values in seconds.items()}, " + ".join(PHASES): summary(total)}


def summary(values: list[float]) -> dict[str, float]:
    """The least, which other work on the machine changes little, the median and the 95th percentile in milliseconds."""
    ordered = sorted(value * 1000 for value in values)
    found = {
        "least": ordered[0],
        "median": statistics.median(ordered),
        "p95": ordered[int(0.95 * (len(ordered) - 1))],
    }
    return {name: round(value, 3) for name, value in found.items()}


if __name__ == "__main__":
    main()
