"""A server with its engine in a process of its own, against one with a thread, against the library. JSON out.

    python -m benchmarks.process --requests 64 --rounds 3

Every figure is of fresh processes, taken in turn. `listens_s` and `ready_s` count from the start of the command; memory is that
of the process that listens, at rest after one request. Tokens per second are of `--requests` streams at once; the client is on
this machine too and takes its part of the cores (`benchmarks/light_client.py`: as little as it can), so processor microseconds
per token are given, of the server's processes and of the client.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import resource
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jaxengine.bench import machine

MODES = {"process": [], "thread": ["--disable-frontend-multiprocessing"]}
TICKS = os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--prompt-len", type=int, default=64)
    parser.add_argument("--output-len", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batches", type=int, default=4, help="of requests, one after the other; the median counts")
    parser.add_argument("--engine-options", type=json.loads, default={}, help="further engine options, as JSON")
    parser.add_argument("--library", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.library:
        print(json.dumps(library(arguments)))
        return
    runs: dict[str, list[dict[str, Any]]] = {"library": [], "thread": [], "process": []}
    for _ in range(arguments.rounds):
        printed = subprocess.run([sys.executable, *sys.orig_argv[1:], "--library"], check=True, stdout=subprocess.PIPE)
        runs["library"].append(json.loads(printed.stdout))
        for mode in MODES:
            runs[mode].append(serve(mode, arguments))
        for mode, found in runs.items():
            print(mode, found[-1], file=sys.stderr)
    medians = {mode: statistics.median(run["tokens_per_s"] for run in found) for mode, found in runs.items()}
    asked = {name: value for name, value in vars(arguments).items() if name != "library"}
    print(
        json.dumps(
            {
                "benchmark": "process",
                "machine": machine.describe(),
                **asked,
                "tokens_per_s": medians,
                "of_the_library": {mode: round(medians[mode] / medians["library"], 3) for mode in MODES},
                "runs": runs,
            },
            indent=2,
        )
    )


def bodies(arguments: argparse.Namespace) -> Iterator[list[dict[str, Any]]]:
    """Requests to warm up with, and then those that are measured."""
    rng = random.Random(0)
    for _ in range(1 + arguments.batches):
        yield [
            {
                "prompt": [rng.randrange(300, 2000) for _ in range(arguments.prompt_len)],
                "max_tokens": arguments.output_len,
                "temperature": 0,
                "ignore_eos": True,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
            for _ in range(arguments.requests)
        ]


def library(arguments: argparse.Namespace) -> dict[str, float]:
    """The same requests without a server."""
    from jaxengine import LLM, SamplingParams

    params = SamplingParams(temperature=0, max_tokens=arguments.output_len, ignore_eos=True)
    rates, used = [], 0.0
    with LLM(max_num_seqs=arguments.requests, **arguments.engine_options) as llm:
        for batch in bodies(arguments):
            prompts = [{"prompt_token_ids": body["prompt"]} for body in batch]
            before, begun = own_cpu_s(), time.perf_counter()
            outputs = llm.generate(prompts, params, use_tqdm=False)
            rates.append(sum(len(output.outputs[0].token_ids) for output in outputs) / (time.perf_counter() - begun))
            used = own_cpu_s() - before
    tokens = arguments.requests * arguments.output_len
    return {
        "tokens_per_s": round(statistics.median(rates[1:]), 1),
        "engine_us_per_token": round(1e6 * used / tokens, 1),
    }


def serve(mode: str, arguments: argparse.Namespace) -> dict[str, float]:
    """One server's life."""
    options = [f"--{name.replace('_', '-')}={json.dumps(value)}" for name, value in arguments.engine_options.items()]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = ["-m", "jaxengine.serve", f"--port={port}", f"--max-num-seqs={arguments.requests}", "--no-access-log"]
    with started([sys.executable, *command, *options, *MODES[mode]]) as server:
        found = watch_start(server, port)
        warm_up, *measured = bodies(arguments)
        ask(port, warm_up[:1])
        time.sleep(1.0)
        found |= memory(server.pid)
        ask(port, warm_up)
        engine = children(server.pid, "engine_process")
        before = [cpu_s(server.pid), sum(map(cpu_s, engine))]
        told = [ask(port, batch) for batch in measured]
        tokens_per_s, client_s = statistics.median(rate for rate, _ in told), sum(spent for _, spent in told)
        tokens = arguments.requests * arguments.output_len * arguments.batches
        used = [cpu_s(server.pid) - before[0], sum(map(cpu_s, engine)) - before[1]]
    names = ("front_us_per_token", "engine_us_per_token") if engine else ("server_us_per_token",)
    spent = {name: round(1e6 * seconds / tokens, 1) for name, seconds in zip(names, used, strict=False)}
    return {**found, "tokens_per_s": tokens_per_s, **spent, "client_us_per_token": round(1e6 * client_s / tokens, 1)}


@contextmanager
def started(command: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A server, which ends."""
    server = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        yield server
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait()


def watch_start(server: subprocess.Popen[bytes], port: int) -> dict[str, float]:
    """When it listens, and when it is ready."""
    begun, listens = time.perf_counter(), 0.0
    while True:
        if server.poll() is not None:
            raise SystemExit(f"the server ended with status {server.returncode}")
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
            connection.request("GET", "/health")
            status = connection.getresponse().status
            listens = listens or time.perf_counter() - begun
            if status == 200:
                return {"listens_s": round(listens, 2), "ready_s": round(time.perf_counter() - begun, 2)}
        except OSError:
            pass
        time.sleep(0.01)


def ask(port: int, requests: list[dict[str, Any]]) -> tuple[float, float]:
    """Tokens per second of all at once, and the client's processor seconds."""
    command = [sys.executable, str(Path(__file__).with_name("light_client.py")), f"127.0.0.1:{port}"]
    data = json.dumps(requests).encode()
    seen = json.loads(subprocess.run(command, input=data, check=True, stdout=subprocess.PIPE).stdout)
    return seen["tokens_per_s"], seen["client_s"]


def memory(pid: int) -> dict[str, float]:
    """Megabytes of a process: resident, its proportional share, and what is its own alone."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    kib = {name: int(value.split()[0]) for name, value in (line.split(":") for line in lines)}
    own = kib["Private_Clean"] + kib["Private_Dirty"]
    return {"rss_mb": kib["Rss"] // 1024, "pss_mb": kib["Pss"] // 1024, "private_mb": own // 1024}


def children(pid: int, word: str) -> list[int]:
    """The children of a process whose command has a word in it."""
    found = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    return [child for child in found if word in Path(f"/proc/{child}/cmdline").read_text()]


def cpu_s(pid: int) -> float:
    """Processor seconds of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def own_cpu_s() -> float:
    """Processor seconds of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
