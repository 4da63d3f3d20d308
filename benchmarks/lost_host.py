"""How soon the first of two hosts says that the other is lost, and how soon streams go on: processes of one machine. JSON out.

    python -m benchmarks.lost_host --times 3 --output benchmarks/results/lost_host.json

`kill` ends the other host's part of the engine with SIGKILL, `stop` stops it with SIGSTOP, each in the middle of 50 streams. Then
`said_s` is from there until the front has the line that says which host is lost and why, `token_s` until the next token of any
stream, which is after both parts of the engine have started again, and `ended_s` until all streams have ended.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jaxengine import AsyncLLM, SamplingParams
from jaxengine.bench import machine

STREAMS, TOKENS = 50, 32
FAULTS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
OPTIONS = {
    "tensor_parallel_size": 2,
    "nnodes": 2,
    "max_model_len": 256,
    "max_num_seqs": 16,
    "bucket_planner": "explicit",
    "buckets": ["16x4"],
}


class Heard(logging.Handler):
    """When the front was told that a host is lost."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.times: list[float] = []
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if " is lost: " in (line := record.getMessage()) and not line.startswith("engine "):
            self.times.append(time.monotonic())
            self.lines.append(line)


@contextmanager
def other_host(options: dict[str, Any]) -> Iterator[subprocess.Popen[bytes]]:
    """The process that keeps the other host's part running."""
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in options.items() if name != "buckets"]
    command = [sys.executable, "-m", "jaxengine", "serve", "--headless", "--node-rank=1", *flags, "--buckets"]
    found = subprocess.Popen([*command, *options["buckets"]])
    try:
        yield found
    finally:
        found.kill()
        found.wait()


async def stream_all(llm: AsyncLLM, name: str, harm: Callable[[], None] | None = None) -> tuple[list[Any], list[float]]:
    """What all streams came to, and when their tokens came; `harm` is done once four of them are on their way."""
    arrivals: list[float] = []
    begun = set()

    async def one(number: int) -> tuple[int, ...]:
        params = SamplingParams(max_tokens=TOKENS, temperature=0.8, seed=number, ignore_eos=True)
        tokens: tuple[int, ...] = ()
        prompt = {"prompt_token_ids": list(range(3, 12 + number % 5))}
        async for output in llm.generate(prompt, params, f"{name} {number}"):
            tokens = tuple(output.outputs[0].token_ids)
            arrivals.append(time.monotonic())
            if len(tokens) >= 10 and number not in begun:
                begun.add(number)
                if len(begun) == 4 and harm is not None:
                    harm()
        return tokens

    return list(await asyncio.gather(*map(one, range(STREAMS)))), arrivals


async def measure(llm: AsyncLLM, heard: Heard, host: int, fault: str, expected: list[Any]) -> dict[str, Any]:
    """One fault."""
    done: list[float] = []

    def harm() -> None:
        [child] = Path(f"/proc/{host}/task/{host}/children").read_text().split()
        os.kill(int(child), FAULTS[fault])
        done.append(time.monotonic())

    load = os.getloadavg()[0]
    tokens, arrivals = await stream_all(llm, f"{fault} {len(heard.times)}", harm)
    [said], [at] = heard.times[-1:], done
    return {
        "fault": fault,
        "said_s": round(said - at, 2),
        "token_s": round(min(arrival for arrival in arrivals if arrival > said) - at, 2),
        "ended_s": round(arrivals[-1] - at, 2),
        "different_streams": sum(one != other for one, other in zip(tokens, expected, strict=True)),
        "line": heard.lines[-1],
        "load_average": round(load, 1),
    }


async def run(times: int) -> dict[str, Any]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        options = {**OPTIONS, "master_port": listener.getsockname()[1]}
    heard = Heard()
    logging.getLogger("jaxengine").addHandler(heard)
    with other_host(options) as host:
        async with AsyncLLM(enable_multiprocessing=True, **options) as llm:
            begun = time.monotonic()
            expected, _ = await stream_all(llm, "undisturbed")
            took = time.monotonic() - begun
            found = [await measure(llm, heard, host.pid, fault, expected) for _ in range(times) for fault in FAULTS]
    return {
        "benchmark": "lost_host",
        "machine": machine.describe(),
        "streams": STREAMS,
        "tokens": STREAMS * TOKENS,
        "undisturbed_s": round(took, 1),
        "faults": found,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    results = asyncio.run(run(given.times))
    print(json.dumps(results, indent=2))
    if given.output:
        given.output.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
