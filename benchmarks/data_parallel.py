"""Replicas that share a machine against one engine that has it all: output tokens a second over HTTP. JSON out.

    python -m benchmarks.data_parallel --requests 32 --rounds 3
    python -m benchmarks.data_parallel --requests 32 --engine-options '{"model": "DIR", "load_format": "dummy"}'

Servers of one kind and the other take turns, each a fresh process; the median of a server's batches counts. The client and the
server's front run on the same machine and take their part of the cores. With 1 and 2 on a CPU of two cores, one engine has both,
or two engines one each.
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import sys
from typing import Any

from benchmarks.process import ask, bodies, started, watch_start
from jaxengine.bench import machine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicas", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--prompt-len", type=int, default=64)
    parser.add_argument("--output-len", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batches", type=int, default=3, help="of requests, one after the other")
    parser.add_argument("--engine-options", type=json.loads, default={}, help="further engine options, as JSON")
    arguments = parser.parse_args()
    rates: dict[int, list[float]] = {count: [] for count in arguments.replicas}
    for _ in range(arguments.rounds):
        for count, found in rates.items():
            found.append(measure(count, arguments))
            print(count, found[-1], file=sys.stderr)
    result = {
        "benchmark": "data_parallel",
        "machine": machine.describe(),
        **vars(arguments),
        "tokens_per_s": {count: statistics.median(found) for count, found in rates.items()},
        "runs": rates,
    }
    print(json.dumps(result, indent=2))


def measure(count: int, arguments: argparse.Namespace) -> float:
    """Output tokens a second of a server with so many replicas."""
    options: dict[str, Any] = {"max_num_seqs": arguments.requests, **arguments.engine_options}
    words = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = ["-m", "jaxengine.serve", f"--port={port}", f"--data-parallel-size={count}", "--no-access-log", *words]
    with started([sys.executable, *command]) as server:
        watch_start(server, port)
        warm_up, *measured = bodies(arguments)
        ask(port, warm_up)
        return statistics.median(rate for rate, _ in (ask(port, batch) for batch in measured))


if __name__ == "__main__":
    main()
