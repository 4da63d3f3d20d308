"""What a light user waits for its first tokens beside a heavy one's queue, by scheduling policy. JSON out.

    python -m benchmarks.fair_shares
    python -m benchmarks.fair_shares --heavy 1000 --target v6e v5e-4 --light 60 --every 2

The heavy user sends all its prompts at once, the light one a prompt every few seconds, and both wait for every answer. The
scheduler and the page accounts are the engine's, the device is a clock (`replaying/targets.py`). `alone` is the light user
without the other. Times are in milliseconds from sending to the first token; `heavy_s` is when the last answer of the heavy user
ended.
"""

from __future__ import annotations

import argparse
import json
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.replay import LONGEST, make_rule
from benchmarks.replaying.targets import TARGETS, Target
from buckets import Limits
from jaxengine.bench import machine, traffic
from jaxengine.bench.clock import Step, serve
from jaxengine.bench.scheduled import Scheduled
from jaxengine.bench.traffic import Arrival
from jaxengine.device.runtime.target import DEFAULTS
from jaxengine.host.kvcache.ledger import Ledger
from jaxengine.host.kvcache.pool import PagePool

HEAVY, LIGHT = "heavy", "light"
POLICIES = ("fcfs", "fair")


class Watched(Scheduled):
    """Notes when each request got its first token and its last."""

    def __init__(self, *arguments: Any, clock: Callable[[], float], policy: str, **options: Any) -> None:
        super().__init__(*arguments, clock=clock, policy=policy, **options)
        self._clock = clock
        self.arrivals: dict[int, Arrival] = {}
        self.first_s = {HEAVY: array("d"), LIGHT: array("d")}
        self.last_s = {HEAVY: 0.0, LIGHT: 0.0}
        self._begun: set[int] = set()

    def add(self, number: int, arrival: Arrival) -> None:
        self.arrivals[number] = arrival
        super().add(number, arrival)

    def commit(self, step: Step) -> Iterable[tuple[int, int, bool]]:
        news = list(super().commit(step))
        for number, _, finished in news:
            arrival = self.arrivals[number]
            if number not in self._begun:
                self._begun.add(number)
                self.first_s[arrival.share].append(self._clock() - arrival.time_s)
            if finished:
                self.last_s[arrival.share] = self._clock()
        return news


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", nargs="+", choices=TARGETS, default=["v6e", "v5e-4"])
    parser.add_argument("--heavy", type=int, default=1000, help="prompts of the heavy user")
    parser.add_argument("--heavy-tokens", type=int, nargs=2, default=(1000, 300), help="means of prompt and output")
    parser.add_argument("--light", type=int, default=100, help="prompts of the light user")
    parser.add_argument("--light-tokens", type=int, nargs=2, default=(500, 100), help="means of prompt and output")
    parser.add_argument("--every", type=float, default=1.0, help="seconds between those of the light user")
    options = parser.parse_args()
    results = {name: compare(TARGETS[name], options) for name in options.target}
    asked = {name: getattr(options, name) for name in ("heavy", "heavy_tokens", "light", "light_tokens", "every")}
    print(
        json.dumps({"benchmark": "fair_shares", "machine": machine.describe(), **asked, "results": results}, indent=2)
    )


def compare(target: Target, options: argparse.Namespace) -> dict[str, Any]:
    """The light user alone, and beside the other under each policy."""
    heavy = [replace(each, time_s=0.0, share=HEAVY) for each in traffic.made(options.heavy, *options.heavy_tokens)]
    light = [
        replace(each, time_s=0.5 + number * options.every, share=LIGHT)
        for number, each in enumerate(traffic.made(options.light, *options.light_tokens, seed=1))
    ]
    both = sorted([*heavy, *light], key=lambda each: each.time_s)
    return {"alone": run(target, light, "fcfs"), **{policy: run(target, both, policy) for policy in POLICIES}}


def run(target: Target, arrivals: Sequence[Arrival], policy: str) -> dict[str, Any]:
    """Serve them."""
    defaults = DEFAULTS[target.platform]
    limits = Limits(
        max_num_seqs=min(defaults.max_num_seqs, defaults.max_num_batched_tokens),
        max_num_batched_tokens=defaults.max_num_batched_tokens,
        max_model_len=min(LONGEST, target.kv_tokens),
        page_size=defaults.page_size,
        free_tokens=defaults.free_tokens,
    )
    ledger = Ledger([PagePool(1 + target.kv_tokens // limits.page_size)], limits.page_size)
    made: list[Watched] = []

    def make(clock: Callable[[], float]) -> Watched:
        made.append(Watched(limits, ledger, make_rule("tokens", limits, target), clock=clock, policy=policy))
        return made[0]

    served = serve(make, arrivals, target, speed=1.0, host_s=1e-3)
    ledger.check()
    [engine] = made
    waits = {share: milliseconds(found) for share, found in engine.first_s.items() if found}
    return {
        **{f"{share}_first_token_ms": found for share, found in waits.items()},
        **({"heavy_s": round(engine.last_s[HEAVY], 1)} if HEAVY in waits else {}),
        "output_tokens_per_s": round(served.outputs / served.wall_s, 1),
        "preemptions": engine.scheduler.stats.num_preemptions,
    }


def milliseconds(seconds: array[float]) -> dict[str, float]:
    """Percentiles."""
    found = np.percentile(np.frombuffer(seconds), (50, 90, 99, 100))
    return {name: round(float(value) * 1e3, 1) for name, value in zip(("p50", "p90", "p99", "max"), found, strict=True)}


if __name__ == "__main__":
    main()
