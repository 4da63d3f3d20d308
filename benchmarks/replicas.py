"""What routing makes of shared prefixes: recorded traffic on one engine, and on several with as much cache and speed in all.

    python -m benchmarks.replicas --trace conversation_trace.jsonl.gz --kv-tokens 800000

Every engine is the real scheduler with the real page accounts, on a device that is a clock (`benchmarks/replaying/targets.py`);
the single engine's steps last as many times less as there are replicas. Requests arrive as recorded, but so much faster that the
single engine is busy for `--load` of the time. `hit_rate` is the share of the prompts' tokens that were found in a cache.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from benchmarks.replay import LONGEST, make_rule
from benchmarks.replaying.targets import TARGETS, Target
from buckets import Limits
from jaxengine.bench import machine, traffic
from jaxengine.bench.clock import Launch, Served, Timeline
from jaxengine.bench.scheduled import SAMPLING, Scheduled
from jaxengine.bench.traffic import Arrival
from jaxengine.contract.request import Request
from jaxengine.device.runtime.target import DEFAULTS
from jaxengine.front.router import Router
from jaxengine.host.kvcache.ledger import Ledger
from jaxengine.host.kvcache.pool import PagePool

Route = Callable[[Request, Mapping[int, int]], int]
"""Chooses of the engines in the mapping, which says how many tokens are in flight at each."""


@dataclass(frozen=True)
class Faster:
    """A device whose steps last `times` times less."""

    target: Target
    times: int

    def seconds(self, launches: Iterable[Launch], sampled: int) -> float:
        """Of a step."""
        return self.target.seconds(launches, sampled) / self.times


def routes(router: Callable[[], Router]) -> Mapping[str, Callable[[], Route]]:
    """Ways to choose an engine."""

    def anywhere() -> Route:
        chance = random.Random(0)
        return lambda _, loads: chance.choice(list(loads))

    return {
        "router": lambda: router().choose,
        "least loaded": lambda: lambda _, loads: min(loads, key=loads.__getitem__),
        "random": anywhere,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", required=True, help="a trace, as of benchmarks.replay")
    parser.add_argument("--target", choices=TARGETS, default="v5e-4", help="the device of a replica")
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--kv-tokens", type=int, nargs="+", default=[800_000], help="what all caches hold together")
    parser.add_argument("--load", type=float, nargs="+", default=[0.8], help="share of the single engine's capacity")
    parser.add_argument("--requests", type=int, help="only the first so many of the trace")
    options = parser.parse_args(arguments)
    results = []
    for tokens in options.kv_tokens:
        for load in options.load:
            results += compare(options.trace, TARGETS[options.target], options.replicas, tokens, load, options.requests)
    print(json.dumps({"machine": machine.describe(), "results": results}, indent=2))
    return 0


def compare(
    source: str, target: Target, replicas: int, kv_tokens: int, load: float, requests: int | None = None
) -> list[dict[str, Any]]:
    """One engine, and several by every route."""
    defaults = DEFAULTS[target.platform]
    limits = Limits(
        max_num_seqs=defaults.max_num_seqs,
        max_num_batched_tokens=defaults.max_num_batched_tokens,
        max_model_len=min(LONGEST, kv_tokens // replicas),
        page_size=defaults.page_size,
        free_tokens=defaults.free_tokens,
    )
    arrivals = [row for row in traffic.read(source)[:requests] if row.prompt + row.output <= limits.max_model_len]
    whole, part = kv_tokens // limits.page_size, kv_tokens // limits.page_size // replicas
    speed = (
        load
        * capacity(arrivals[: len(arrivals) // 4], limits, Faster(target, replicas), whole)
        / (len(arrivals) / arrivals[-1].time_s)
    )
    described = {"trace": Path(source).name, "target": target.name, "kv_tokens": kv_tokens, "load": load}
    one = serve([1], arrivals, limits, Faster(target, replicas), whole, speed=speed, route=lambda *_: 0, label="one")
    rows = [described | {"engines": 1, "route": "one"} | one]

    def router() -> Router:
        return Router(page_size=limits.page_size, num_pages=part)

    for name, make in routes(router).items():
        many = serve(range(replicas), arrivals, limits, Faster(target, 1), part, speed=speed, route=make(), label=name)
        rows.append(described | {"engines": replicas, "route": name} | many)
        rows[-1]["of_one"] = round(many["hit_rate"] / one["hit_rate"], 4)
    return rows


def engine(limits: Limits, device: Faster, pages: int, served: Served) -> Timeline:
    """The real scheduler and accounts of so many pages."""
    ledger = Ledger([PagePool(1 + pages)], limits.page_size)
    rule = make_rule("tokens", limits, device.target)
    return Timeline(lambda clock: Scheduled(limits, ledger, rule, clock=clock), device, served, host_s=1e-3)


def capacity(arrivals: Sequence[Arrival], limits: Limits, device: Faster, pages: int) -> float:
    """Requests a second of a single engine that is never idle."""
    served = Served()
    line = engine(limits, device, pages, served)
    for number, arrival in enumerate(arrivals):
        while line.engine.num_waiting >= 64 and line.advance():
            pass
        line.add(number, arrival, line.now)
    while line.advance():
        pass
    return served.rate


def serve(
    names: Iterable[int],
    arrivals: Sequence[Arrival],
    limits: Limits,
    device: Faster,
    pages: int,
    *,
    speed: float,
    route: Route,
    label: str,
) -> dict[str, Any]:
    """Serve a trace with engines of so many pages each."""
    served = Served()
    lines = [engine(limits, device, pages, served) for _ in names]
    sent = [0] * len(lines)
    for number, arrival in enumerate(tqdm(arrivals, desc=label, unit="req", mininterval=5)):
        due = arrival.time_s / speed
        for line in lines:
            line.run_until(due)
        loads = {index: sum(line.tokens.values()) for index, line in enumerate(lines)}
        request = Request(
            request_id=str(number),
            prompt_token_ids=arrival.token_ids(),
            sampling=SAMPLING,
            max_tokens=arrival.output,
        )
        chosen = route(request, loads)
        sent[chosen] += 1
        lines[chosen].add(number, arrival, due)
    for line in lines:
        while line.advance():
            pass
    stats = [line.engine.scheduler.stats for line in lines]
    report = served.report()
    return {
        "hit_rate": round(
            sum(one.prefix_cache_hits for one in stats) / sum(one.prefix_cache_queries for one in stats), 4
        ),
        "requests": sent,
        "preemptions": sum(one.num_preemptions for one in stats),
        "speed": round(speed, 3),
        **{name: report[name] for name in ("wall_s", "device_s", "first_token_ms", "between_tokens_ms")},
    }


if __name__ == "__main__":
    raise SystemExit(main())
