"""What it costs the first of several hosts to tell the others a step of 256 sequences: processes without devices, of one machine.

    python -m benchmarks.host_launch --times 3 --output benchmarks/results/host_launch.json

`tell` is what the loop waits for, and `tell_cpu` what of it is its own work, which other work of the machine changes less;
`there` is the time until every other host has read the step, measured by its answer.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from buckets import Bucket
from jaxengine.bench import machine
from jaxengine.contract.batch import Batch
from jaxengine.contract.rows import Rows
from jaxengine.startup.group.following import find_first_host
from jaxengine.startup.group.leading import gather_hosts

ROWS = 256
STEPS = 500
PAGES = 16
"""Sequences of a step that begin a page, as of 256 with pages of 16 tokens do."""


def step(number: int) -> Batch:
    """A step in which all sequences go on by a token, and some get a page."""
    import numpy as np

    rows = Rows()
    rows.add_next_tokens(list(range(1, ROWS + 1)), [1000 + number] * ROWS)
    tables = tuple((slot, np.arange(64, dtype=np.int32).reshape(1, -1)) for slot in range(1, PAGES + 1))
    return Batch(number, Bucket(ROWS, 1), rows, tables=tables)


def measure(size: int) -> dict[str, Any]:
    """Medians in microseconds, with so many hosts besides this one."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        command = [sys.executable, "-m", "benchmarks.host_launch", "--port", str(port), "--size", str(1 + size)]
        others = [subprocess.Popen([*command, "--rank", str(rank)]) for rank in range(1, 1 + size)]
        group = gather_hosts(
            listener, 1 + size, {}, key=b"launch", timeout_s=120, say=lambda text: None, on_lost=sys.exit
        )
    load = os.getloadavg()[0]
    telling, there, worked = [], [], 0.0
    for number in range(STEPS):
        batch = step(number)
        begun, begun_work = time.perf_counter(), time.thread_time()
        group.tell("launch", (batch,), {})
        telling.append(time.perf_counter() - begun)
        worked += time.thread_time() - begun_work
        group.gather("there", 0)
        there.append(time.perf_counter() - begun)
    group.close()
    for other in others:
        other.wait()
    return {
        "other_hosts": size,
        "tell_us": round(statistics.median(telling) * 1e6, 1),
        "tell_p90_us": round(statistics.quantiles(telling, n=10)[-1] * 1e6, 1),
        "tell_cpu_us": round(worked / STEPS * 1e6, 1),
        "there_us": round(statistics.median(there) * 1e6, 1),
        "load_average": round(load, 1),
    }


def follow(port: int, rank: int, size: int) -> None:
    group = find_first_host("127.0.0.1", port, rank, size, {}, key=b"launch", timeout_s=120, on_lost=sys.exit)
    for _ in group.calls():
        group.gather("there", 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("port", "rank", "size"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    if given.rank:
        follow(given.port, given.rank, given.size)
        return
    import pickle

    results = {
        "what": __doc__.splitlines()[0],
        "rows": ROWS,
        "bytes": len(pickle.dumps(("call", 1, "launch", (step(1),), {}), 5)),
        "machine": machine.describe(),
        "results": [measure(size) for _ in range(given.times) for size in (1, 3, 15)],
    }
    print(json.dumps(results, indent=2))
    if given.output:
        given.output.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
