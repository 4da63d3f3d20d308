"""Kills builders and starting engines at random points: `python -m tests.xla_cache.killing {build,start} DIR ROUNDS SEED`.

This process imports JAX and never starts it, so that children can be forked: each begins where a fresh process would be after
its imports. Prints one line of JSON: rounds, how many children were killed, and what was wrong.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

FACTORS = (2, 3, 4, 5)


def build(place: Path) -> None:
    """Like `jaxengine compile`: what is missing is compiled into the directory, which a manifest then closes."""
    from tests.xla_cache.small import cache, scaled
    from xla_cache import build_programs, write_bundle

    kept = cache(place)
    records = build_programs([scaled(factor) for factor in FACTORS], kept, threads=2)
    write_bundle(place, kept.store, [record.kept for record in records], context=kept.context, description={})


def start(place: Path) -> None:
    """Like an engine: load or compile, run everything once, remember the start."""
    from tests.xla_cache.small import cache, expected, result, scaled
    from xla_cache import compile_programs
    from xla_cache.starts import StartRecord, write_start

    kept = cache(place)
    programs = [scaled(factor) for factor in FACTORS]
    kept.expect(programs)
    done = compile_programs(programs, threads=2, cache=kept)
    for factor in FACTORS:
        assert result(done[f"scale {factor}"][0]) == expected(factor)
    keys = {name: key.digest for name, key in kept.keys.items()}
    write_start(kept.store, StartRecord({"model": "tiny"}, kept.context, keys, (), time.time()))


def problems(place: Path) -> list[str]:
    """What a reader would find wrong. Leftovers of a killed writer that nobody reads are not wrong."""
    from xla_cache import Bundle, Store
    from xla_cache.bundle import MANIFEST
    from xla_cache.report import verify

    found = verify(Store.open(place))
    if (place / MANIFEST).exists():
        found += verify(Bundle.open(place))
    return found


def run(work: Any, place: Path, kill_after: float | None) -> tuple[int, float]:
    """Fork, do the work, perhaps kill it; the wait status and the seconds it took."""
    begun = time.perf_counter()
    child = os.fork()
    if child == 0:
        try:
            work(place)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1], time.perf_counter() - begun


def main(mode: str, place: Path, rounds: int, seed: int) -> dict[str, Any]:
    work = {"build": build, "start": start}[mode]
    rng, wrong, killed = random.Random(seed), [], 0
    status, whole = run(work, place / "timed", None)
    if status != 0:
        return {"wrong": [f"the first child failed: {status}"]}
    for i in range(rounds):
        # a fresh place half of the time, else one in which others died before
        if i % 2 == 0:
            current = place / str(i)
        status, seconds = run(work, current, rng.uniform(0.0, whole))
        whole = min(whole, seconds) if status == 0 else whole
        killed += os.WIFSIGNALED(status)
        if not os.WIFSIGNALED(status) and status != 0:
            wrong.append(f"round {i}: failed with {status}")
        wrong += [f"round {i}: {problem}" for problem in problems(current)]
        if i % 10 == 1:  # what is left must be good for a start that compiles only what is missing
            for _ in range(2):
                status, _ = run(start, current, None)
                wrong += [f"round {i}: a start on the remains failed with {status}"] if status else []
    return {"rounds": rounds, "killed": killed, "whole_s": whole, "wrong": wrong}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))))
