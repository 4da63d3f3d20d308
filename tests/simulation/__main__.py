"""Runs many seeds, or one again: `python -m tests.simulation --seeds 100000 --jobs 2`, `python -m tests.simulation --seed 7`."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from pathlib import Path

from tqdm import tqdm

from tests.simulation.many import run_seeds
from tests.simulation.scenario import draw_scenario
from tests.simulation.shrink import kind_of, shrink
from tests.simulation.world import History, run


def main() -> int:
    """The command; 1 when a seed fails."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation", description="Simulate the front and its engines."
    )
    parser.add_argument("--seeds", type=int, default=2000, help="how many seeds to run")
    parser.add_argument("--start", type=int, default=0, help="the first of them")
    parser.add_argument("--jobs", type=int, default=1, help="processes that run them")
    parser.add_argument("--json", type=Path, help="where to write what came of it")
    parser.add_argument(
        "--seed", type=int, help="run this one alone, and show the smallest scenario that fails like it"
    )
    parser.add_argument("--log", action="store_true", help="with --seed: show everything that happens")
    options = parser.parse_args()
    if options.seed is not None:
        return _replay(options.seed, log=options.log)
    return _run_many(range(options.start, options.start + options.seeds), options.jobs, options.json)


def _replay(seed: int, *, log: bool) -> int:
    history = run(draw_scenario(seed))
    if log:
        print("\n".join(history.log))
    print(f"seed {seed}: digest {history.digest}, {dict(history.counts)}")
    return _show(history) if history.errors else 0


def _show(history: History) -> int:
    """Print the smallest scenario that still fails."""
    kind = kind_of(history.errors)
    smallest = run(shrink(history.scenario, lambda scenario: kind_of(run(scenario).errors) == kind))
    print("\n".join([f"\nseed {history.scenario.seed} fails:", *smallest.errors, "\nwith", str(smallest.scenario)]))
    return 1


def _run_many(seeds: range, jobs: int, path: Path | None) -> int:
    started, counts, failed = time.perf_counter(), Counter[str](), []
    for result in tqdm(run_seeds(seeds, jobs=jobs), total=len(seeds), unit="seed", disable=None):
        counts.update(result.counts)
        if result.errors:
            failed.append(result.seed)
            print(f"seed {result.seed}: {result.errors[0]}", file=sys.stderr)
    seconds = time.perf_counter() - started
    report = {
        "seeds": len(seeds),
        "first": seeds.start,
        "jobs": jobs,
        "seconds": round(seconds, 1),
        "seeds_per_second": round(len(seeds) / seconds, 1),
        "failed": sorted(failed),
        "counts": dict(sorted(counts.items())),
    }
    print(json.dumps(report, indent=1))
    if path is not None:
        path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return _show(run(draw_scenario(min(failed)))) if failed else 0


if __name__ == "__main__":
    sys.exit(main())
