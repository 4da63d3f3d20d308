"""Recorded traffic through the engine's scheduler and page accounts, on a device that is a clock. JSON out.

    python -m benchmarks.replay --trace AzureLLMInferenceTrace_conv.csv.gz --target v6e --rules tokens tpu-inference
    python -m benchmarks.replay --trace conversation_trace.jsonl.gz --rules tokens --tiers 0 50 200 200+1000
    python -m benchmarks.replay --trace TRACE --budgets 2048 64 128 256 512 1024 4096 8192 --plot budgets.png

Every rule serves a trace twice: saturated, a request being there whenever the engine has room for it, and at a load, with the
recorded arrivals in less time. The load is a share of the rate at which the first rule, with the first budget, was saturated,
so all serve the same traffic. `device_s` is the time that the device computes, `first_token_ms` and `between_tokens_ms` are
what users wait. KV capacity, prefix cache, preemption and sampling are those of the engine; what a launch lasts is a model
(`benchmarks/replaying/targets.py` says which), and so are the shapes of others (`rules.py`).

`--tiers` are gigabytes of host memory behind the pages, and after a plus of a disk behind that (`benchmarks/replaying/tiers.py`);
the first is what the load is taken from.

Traces: Azure's LLM inference traces (CSV), Mooncake's (JSON lines), what `--record-traffic` writes, lines of
`{"prompt_tokens": ..., "output_tokens": ...}`, plain or gzipped; or `random:COUNT:PROMPT:OUTPUT`, log-normal with these means.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tqdm import tqdm

from benchmarks.replaying.engines import PromptsFirst
from benchmarks.replaying.rules import OnePrompt, PaddedUp, TwoLaunches
from benchmarks.replaying.targets import TARGETS, Target
from benchmarks.replaying.tiers import NO_TIERS, Links, Sizes, Tiered, WithCopies, make_ledger, make_links
from buckets import PLANNERS, Limits, plan
from jaxengine.bench import machine, traffic
from jaxengine.bench.clock import Engine, Served, serve
from jaxengine.bench.scheduled import Flat, Rule, Scheduled
from jaxengine.bench.traffic import Arrival
from jaxengine.device.runtime.target import DEFAULTS

LONGEST = 131_072
"""Positions of the model."""
PEERS = (TwoLaunches.name, PaddedUp.name, PromptsFirst.name, OnePrompt.name)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", action="append", required=True, help="a trace; may be repeated")
    parser.add_argument("--target", action="append", choices=TARGETS, help="a device; may be repeated (v6e)")
    parser.add_argument(
        "--rules",
        nargs="+",
        default=[TwoLaunches.name, "tokens"],
        choices=[*PLANNERS, *PEERS],
        metavar="RULE",
        help=f"planners of ours ({', '.join(PLANNERS)}) and rules of others ({', '.join(PEERS)})",
    )
    parser.add_argument("--buckets", nargs="+", help="buckets of the explicit planner, such as 256x8 64x1")
    parser.add_argument("--budgets", type=int, nargs="+", help="token budgets of a step, the reference first")
    parser.add_argument("--tiers", type=Sizes.parse, nargs="+", default=[NO_TIERS], metavar="HOST[+DISK]")
    parser.add_argument("--load", type=float, default=0.8, help="share of the saturated rate; 0 leaves this part out")
    parser.add_argument("--host-ms", type=float, default=1.0, help="what the host needs before a step is launched")
    parser.add_argument("--requests", type=int, help="only the first so many of each trace")
    parser.add_argument("--plot", type=Path, help="write a picture (needs matplotlib)")
    options = parser.parse_args(arguments)

    results = []
    for source in options.trace:
        arrivals = traffic.read(source)[: options.requests]
        for name in options.target or ["v6e"]:
            results += compare(source, arrivals, TARGETS[name], options)
    if options.plot:
        draw(results, options.plot)
    targets = {name: asdict(TARGETS[name]) for name in options.target or ["v6e"]}
    print(json.dumps({"machine": machine.describe(), "targets": targets, "results": results}, indent=2))
    return 0


def compare(
    source: str, arrivals: Sequence[Arrival], target: Target, options: argparse.Namespace
) -> list[dict[str, Any]]:
    """All rules with all budgets on one trace and one target."""
    fitting = [arrival for arrival in arrivals if arrival.prompt + arrival.output <= min(LONGEST, target.kv_tokens)]
    span_s = fitting[-1].time_s
    defaults, rate = DEFAULTS[target.platform], 0.0
    results = []
    for budget in options.budgets or [defaults.max_num_batched_tokens]:
        limits = Limits(
            max_num_seqs=min(defaults.max_num_seqs, budget),
            max_num_batched_tokens=budget,
            max_model_len=min(LONGEST, target.kv_tokens),
            page_size=defaults.page_size,
            free_tokens=defaults.free_tokens,
        )
        own = {"buckets": options.buckets and tuple(options.buckets)}
        for name, tiers in itertools.product(options.rules, options.tiers):
            shapes = own if name == "explicit" else {}
            label = f"{Path(source).name} {target.name} {name} {budget}"
            host_s = options.host_ms / 1e3
            saturated, hits = run(
                name, limits, fitting, target, tiers, speed=None, host_s=host_s, label=label, **shapes
            )
            rate = rate or saturated.rate
            result = {
                "trace": Path(source).name,
                "left_out": len(arrivals) - len(fitting),
                "target": target.name,
                "rule": name,
                "budget": budget,
                **({"host_gb": tiers.host / 1e9, "disk_gb": tiers.disk / 1e9} if options.tiers[1:] else {}),
                "saturated": {**saturated.report(), **hits},
            }
            if options.load and span_s:
                speed = options.load * rate / (len(fitting) / span_s)
                loaded, hits = run(
                    name, limits, fitting, target, tiers, speed=speed, host_s=host_s, label=label, **shapes
                )
                result["loaded"] = {"speed": round(speed, 3), **loaded.report(), **hits}
            results.append(result)
    return results


def run(
    name: str,
    limits: Limits,
    arrivals: Sequence[Arrival],
    target: Target,
    tiers: Sizes = NO_TIERS,
    *,
    speed: float | None,
    host_s: float = 0.0,
    label: str = "",
    **shapes: Any,
) -> tuple[Served, dict[str, Any]]:
    """Serve a trace by one rule, and what was found of its prompts; `shapes` are options of the planner that it names."""
    ledger = make_ledger(tiers, 1 + target.kv_tokens // limits.page_size, limits.page_size)
    links: list[Links] = []

    def make(clock: Callable[[], float]) -> Engine:
        if tiers != NO_TIERS:
            links.append(make_links(tiers, limits.page_size, clock))
            return Tiered(limits, ledger, make_rule(name, limits, target, **shapes), links[0], clock=clock)
        if name == PromptsFirst.name:
            return PromptsFirst(limits, ledger)
        return Scheduled(limits, ledger, make_rule(name, limits, target, **shapes), clock=clock)

    with tqdm(total=len(arrivals), desc=label, unit="req") as bar:
        served = serve(make, arrivals, WithCopies(target), speed=speed, host_s=host_s, done=bar.update)
    ledger.check()
    stats = ledger.stats
    found = {"device": stats.hits, **({} if ledger.tier is None else {"behind": stats.external_hits})}
    rates = {where: round(hits / max(1, stats.queries), 4) for where, hits in found.items()}
    step_ms = round(1e3 * served.device_s / served.steps, 3)
    moved = {way: round(count / 1e9, 1) for way, count in (links[0].traffic if links else {}).items()}
    return served, {"hit_rates": rates, "step_ms": step_ms, "moved_gb": moved}


def make_rule(name: str, limits: Limits, target: Target, **shapes: Any) -> Rule:
    """The rule of that name."""
    others: dict[str, Callable[[Limits], Rule]] = {rule.name: rule for rule in (TwoLaunches, PaddedUp, OnePrompt)}
    if name in others:
        return others[name](limits)
    grid = plan(name, limits, **shapes)
    return Flat(grid.with_costs(target.costs(grid.buckets)))


def draw(results: list[dict[str, Any]], path: Path) -> None:
    """Device time, first tokens and times between tokens: over the token budget, or one bar for each rule."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = {
        "device time, saturated, s": lambda row: [row["saturated"]["device_s"]],
        "first token, ms (p50, p99)": lambda row: list(_ends(row, "first_token_ms")),
        "between tokens, ms (p50, p99)": lambda row: list(_ends(row, "between_tokens_ms")),
    }
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in results:
        groups.setdefault(f"{row['trace'].split('.')[0]}, {row['target']}", []).append(row)
    sweeps = len({row["budget"] for row in results}) > 1
    figure, axes = pyplot.subplots(len(groups), len(panels), figsize=(15, 4 * len(groups)), squeeze=False)
    for line, (title, rows) in zip(axes, groups.items(), strict=True):
        rules = list(dict.fromkeys(row["rule"] for row in rows))
        for axis, (label, values) in zip(line, panels.items(), strict=True):
            axis.set_title(title)
            axis.set_ylabel(label)
            if sweeps:
                for number, rule in enumerate(rules):
                    ours = sorted((row for row in rows if row["rule"] == rule), key=lambda row: row["budget"])
                    for style, series in zip("-:", zip(*map(values, ours), strict=True), strict=False):
                        axis.plot(
                            [row["budget"] for row in ours], series, style, marker="o", color=f"C{number}", label=rule
                        )
                axis.set_xscale("log", base=2)
                axis.set_yscale("log")
                axis.set_xlabel("token budget of a step")
            else:
                for shade, series in zip((1.0, 0.5), zip(*map(values, rows), strict=True), strict=False):
                    axis.bar(rules, series, alpha=shade, color="C0")
                axis.tick_params(axis="x", rotation=30)
        if sweeps:
            line[0].legend()
    figure.tight_layout()
    figure.savefig(path)


def _ends(row: dict[str, Any], name: str) -> tuple[float, float]:
    times = row.get("loaded", row["saturated"])[name]
    return times["p50"], times["p99"]


if __name__ == "__main__":
    raise SystemExit(main())
