"""Padded tokens of each bucket planner when a recorded trace is served: a simulation of the scheduler alone. JSON out.

Every step takes one decode row of each running sequence, then fills a prefill bucket with the prompts in order of arrival, as
the engine does, with the same `Grid`. `padding` is token places beyond real tokens, over real tokens. Each launch of a step lasts
`launch_ms + places * token_us`, and at least `floor_ms`, in which the weights are read: the defaults are about those of an 8B
model in bfloat16 on one large GPU. How long steps last decides how many sequences decode at once, so it matters; try others:
`--launch-ms 0 --floor-ms 9.5 --token-us 25 --free-tokens 128` for a v6e at 60% of its peak.

python benchmarks/padding.py --trace AzureLLMInferenceTrace_conv.csv.gz --rates 1 4 --plot padding.png

Traces: Azure's LLM inference traces (CSV) and Mooncake's (JSON lines), plain or gzipped.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import heapq
import json
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import IO, Any

import machine
from tqdm import tqdm

from buckets import PLANNERS, Grid, Limits, StepShape, plan


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request of a trace: seconds since the first one, and its tokens."""

    time_s: float
    prompt: int
    output: int


@dataclass(frozen=True, slots=True)
class Speed:
    """How long a launch lasts."""

    launch_ms: float
    token_us: float
    floor_ms: float = 0.0

    def seconds(self, places: int) -> float:
        return max(self.floor_ms, self.launch_ms + places * self.token_us / 1e3) / 1e3


@dataclass
class Served:
    """What serving a trace came to."""

    prefill_places: int = 0
    prefill_tokens: int = 0
    decode_places: int = 0
    decode_tokens: int = 0
    steps: int = 0
    launches: int = 0
    device_s: float = 0.0
    first_token_s: list[float] = field(default_factory=list)

    def report(self) -> dict[str, Any]:
        real = self.prefill_tokens + self.decode_tokens
        waits = sorted(self.first_token_s)
        return {
            "padding": round((self.prefill_places + self.decode_places) / real - 1, 4),
            "prefill_padding": round(self.prefill_places / max(1, self.prefill_tokens) - 1, 4),
            "decode_padding": round(self.decode_places / max(1, self.decode_tokens) - 1, 4),
            "real_tokens": real,
            "decode_share": round(self.decode_tokens / real, 4),
            "steps": self.steps,
            "launches": self.launches,
            "device_s": round(self.device_s, 1),
            "first_token_p50_s": round(waits[len(waits) // 2], 3),
            "first_token_p99_s": round(waits[len(waits) * 99 // 100], 3),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, action="append", required=True, help="a trace file; may be repeated")
    parser.add_argument("--rates", type=float, nargs="+", default=[1, 4], help="multiples of the recorded arrival rate")
    parser.add_argument("--planners", nargs="+", default=["rows", "linear", "exponential"], choices=sorted(PLANNERS))
    parser.add_argument("--buckets", nargs="+", help="shapes of the explicit planner, such as 4x128 8x1 4x128+8")
    parser.add_argument("--max-num-seqs", type=int, default=256)
    parser.add_argument("--max-num-batched-tokens", type=int, default=2048)
    parser.add_argument("--page-size", type=int, default=16)
    parser.add_argument("--launch-ms", type=float, default=10.0, help="what a launch lasts beside its tokens")
    parser.add_argument("--token-us", type=float, default=30.0, help="what a token place adds")
    parser.add_argument("--floor-ms", type=float, default=0.0, help="what a launch lasts at least")
    parser.add_argument("--free-tokens", type=int, default=1, help="places of a launch below which the grid is coarse")
    parser.add_argument("--requests", type=int, help="only the first so many of each trace")
    parser.add_argument("--plot", type=Path, help="write a bar chart (needs matplotlib)")
    options = parser.parse_args()

    results = []
    for trace in options.trace:
        arrivals = read_trace(trace)[: options.requests]
        limits = Limits(
            max_num_seqs=options.max_num_seqs,
            max_num_batched_tokens=options.max_num_batched_tokens,
            max_model_len=max(arrival.prompt + arrival.output for arrival in arrivals),
            page_size=options.page_size,
            buckets=tuple(options.buckets) if options.buckets else None,
            free_tokens=options.free_tokens,
        )
        for planner in options.planners:
            grid = plan(planner, limits)
            for rate in options.rates:
                speed = Speed(options.launch_ms, options.token_us, options.floor_ms)
                with tqdm(total=len(arrivals), desc=f"{trace.name} {planner} x{rate:g}", unit="req") as bar:
                    served = serve(arrivals, grid, limits, rate=rate, speed=speed, bar=bar)
                results.append(
                    {"trace": trace.name, "planner": planner, "rate": rate, "shapes": len(grid), **served.report()}
                )
    if options.plot:
        draw(results, options.plot)
    setting = {"max_num_seqs": options.max_num_seqs, "max_num_batched_tokens": options.max_num_batched_tokens}
    print(
        json.dumps(
            {"machine": machine.describe(), "limits": setting, "speed": asdict(speed), "results": results}, indent=2
        )
    )


def read_trace(path: Path) -> list[Arrival]:
    """Read an Azure or a Mooncake trace, in order of arrival."""
    with open_text(path) as lines:
        rows = list(_mooncake(lines) if ".json" in path.name else _azure(lines))
    first = min(row.time_s for row in rows)
    return sorted((Arrival(row.time_s - first, row.prompt, row.output) for row in rows), key=lambda row: row.time_s)


def open_text(path: Path) -> IO[str]:
    return gzip.open(path, "rt", newline="") if path.suffix == ".gz" else path.open(newline="")


def _azure(lines: IO[str]) -> Iterator[Arrival]:
    for row in csv.DictReader(lines):
        # Seven digits of a second are one more than datetime reads.
        time = datetime.fromisoformat(row["TIMESTAMP"][:26])
        yield Arrival(time.timestamp(), max(1, int(row["ContextTokens"])), max(1, int(row["GeneratedTokens"])))


def _mooncake(lines: IO[str]) -> Iterator[Arrival]:
    for row in map(json.loads, lines):
        yield Arrival(row["timestamp"] / 1000, max(1, row["input_length"]), max(1, row["output_length"]))


def serve(
    arrivals: Sequence[Arrival], grid: Grid, limits: Limits, *, rate: float, speed: Speed, bar: tqdm[Any] | None = None
) -> Served:
    """Serve a trace with continuous batching. KV memory is taken to suffice."""
    waiting = deque(arrivals)
    prefilling: list[tuple[int, Arrival]] = []
    finishing: list[int] = []  # the step after which each decoding sequence is done
    served, now = Served(), 0.0
    while waiting or prefilling or finishing:
        while waiting and waiting[0].time_s / rate <= now and len(prefilling) + len(finishing) < limits.max_num_seqs:
            arrival = waiting.popleft()
            prefilling.append((arrival.prompt, arrival))
        if not prefilling and not finishing:
            now = waiting[0].time_s / rate
            continue
        decode = grid.fit_decode(len(finishing)) if finishing else None
        fill = grid.fill_prefill(
            [left for left, _ in prefilling], max_tokens=limits.max_num_batched_tokens - len(finishing)
        )
        served.steps += 1
        served.decode_tokens += len(finishing)
        while finishing and finishing[0] <= served.steps:
            heapq.heappop(finishing)
        launches: list[int] = []
        if decode is not None:
            served.decode_places += decode.batch
            launches.append(decode.tokens)
        if fill is not None:
            served.prefill_tokens += sum(fill.takes)
            served.prefill_places += fill.bucket.tokens
            together = decode is not None and grid.has(StepShape(fill.bucket, decode))
            launches.append(fill.bucket.tokens + (launches.pop() if together else 0))
        lasted = sum(speed.seconds(places) for places in launches)
        now += lasted
        served.launches += len(launches)
        served.device_s += lasted
        if fill is not None:
            left = [(left - take, arrival) for (left, arrival), take in zip(prefilling, fill.takes, strict=True)]
            prefilling = [item for item in left if item[0]]
            for _, arrival in (item for item in left if not item[0]):
                served.first_token_s.append(now - arrival.time_s / rate)
                if arrival.output > 1:
                    heapq.heappush(finishing, served.steps + arrival.output - 1)
            if bar is not None:
                bar.update(len(left) - len(prefilling))
    return served


def draw(results: list[dict[str, Any]], path: Path) -> None:
    """One bar per result, and the goal of 5%."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    labels = [
        f"{row['trace'].split('.')[0]} x{row['rate']:g}, {row['planner']} ({row['shapes']} shapes)" for row in results
    ]
    figure, axes = pyplot.subplots(figsize=(9, 1 + 0.4 * len(results)))
    axes.barh(labels, [100 * row["padding"] for row in results])
    axes.axvline(5, linestyle="--", color="black", linewidth=1)
    axes.invert_yaxis()
    axes.set_xlabel("padded tokens, % of real ones")
    figure.tight_layout()
    figure.savefig(path)


if __name__ == "__main__":
    main()
