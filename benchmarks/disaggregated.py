"""First tokens with prompts computed on another engine, and without. JSON out.

    python -m benchmarks.disaggregated --prompt-len 1000 --prompts 20 > benchmarks/results/disaggregated.json

Three processes on this machine, which share its cores: an engine that computes prompts, one that generates, and the proxy before
them. Prompts are random and new each time. Seconds to the first token, medians:

    one engine        the engine that generates computes the prompt itself
    through the proxy the other computes it, then its pages are fetched
    pages are there   the other has computed it before; the engine that generates fetches its pages
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import secrets
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from jaxengine.bench import machine

HAND_OVER = {"do_remote_decode": True}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompt-len", type=int, default=1000)
    parser.add_argument("--prompts", type=int, default=20)
    parser.add_argument("--engine-options", type=json.loads, default={}, help="further engine options, as JSON")
    parser.add_argument("--tcp", action="store_true", help="no shared memory")
    arguments = parser.parse_args()
    os.environ["PAGES_SECRET"] = secrets.token_hex(32)
    producer, pages, consumer, front = (_free_port() for _ in range(4))
    with ExitStack() as stack:
        for role, port in (("kv_producer", producer), ("kv_consumer", consumer)):
            stack.enter_context(_started(_serve(role, port, pages, arguments), port))
        proxy = ["examples/disaggregated/proxy.py", f"--port={front}", f"--prefill=http://127.0.0.1:{producer}"]
        stack.enter_context(_started([*proxy, f"--decode=http://127.0.0.1:{consumer}"], front))
        results = measure(producer, consumer, front, arguments)
    asked = vars(arguments)
    print(json.dumps({"benchmark": "disaggregated", "machine": machine.describe(), **asked, **results}, indent=2))


def measure(producer: int, consumer: int, front: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Seconds to the first token each way, in turn, so that what else the machine does falls on all alike."""
    rng = random.Random(1)
    found: dict[str, list[float]] = {"one engine": [], "through the proxy": [], "pages are there": []}
    for number in range(arguments.prompts + 2):
        prompts = [[rng.randrange(300, 2000) for _ in range(arguments.prompt_len)] for _ in found]
        _, params = first_token(producer, prompts[2], {"max_tokens": 1, "kv_transfer_params": HAND_OVER})
        times = (
            first_token(consumer, prompts[0], {})[0],
            first_token(front, prompts[1], {})[0],
            first_token(consumer, prompts[2], {"kv_transfer_params": params})[0],
        )
        for (name, seconds), value in zip(found.items(), times, strict=True):
            if number >= 2:  # the first ones warm up
                seconds.append(value)
            print(f"{number} {name}: {value:.3f} s", file=sys.stderr)
    metrics = _get(consumer, "/metrics")
    sources = [line for line in metrics.splitlines() if line.startswith("vllm:prompt_tokens_by_source_total")]
    return {
        "first_token_s": {name: round(statistics.median(values), 4) for name, values in found.items()},
        "all_s": {name: [round(value, 4) for value in values] for name, values in found.items()},
        "prompt_tokens_by_source": {
            line.split('source="')[1].split('"')[0]: float(line.split()[-1]) for line in sources
        },
    }


def first_token(port: int, prompt: list[int], fields: dict[str, Any]) -> tuple[float, Any]:
    """Seconds to the first token of a stream, or of an answer that has no more than one, and its `kv_transfer_params`."""
    body = {"prompt": prompt, "max_tokens": 4, "temperature": 0, "ignore_eos": True, "return_token_ids": True, **fields}
    body["stream"] = body["max_tokens"] > 1
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    begun = time.perf_counter()
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    if answer.status != 200:
        raise RuntimeError(f"status {answer.status}: {answer.read()[:500]!r}")
    if not body["stream"]:
        params = json.loads(answer.read())["kv_transfer_params"]
        return time.perf_counter() - begun, params
    for line in answer:
        if line.startswith(b"data: {") and json.loads(line[6:])["choices"][0]["token_ids"]:
            break
    seconds = time.perf_counter() - begun
    answer.read()
    connection.close()
    return seconds, None


def _serve(role: str, port: int, pages: int, arguments: argparse.Namespace) -> list[str]:
    config = {
        "kv_connector": "TcpConnector",
        "kv_role": role,
        "kv_port": pages,
        "kv_connector_extra_config": {"secret_env": "PAGES_SECRET", "shared_memory": not arguments.tcp},
    }
    options = [
        f"--{name.replace('_', '-')}={value if isinstance(value, str) else json.dumps(value)}"
        for name, value in {**arguments.engine_options, "kv_transfer_config": config}.items()
    ]
    return ["-m", "jaxengine.serve", f"--port={port}", "--no-access-log", *options]


@contextmanager
def _started(command: list[str], port: int) -> Iterator[None]:
    process = subprocess.Popen([sys.executable, *command], stdout=sys.stderr)
    try:
        while True:
            try:
                _get(port, "/health")
                break
            except (OSError, RuntimeError):
                if process.poll() is not None:
                    raise SystemExit("a server did not start") from None
                time.sleep(0.2)
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def _get(port: int, path: str) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", path)
    answer = connection.getresponse()
    if answer.status != 200:
        raise RuntimeError(f"status {answer.status}")
    text = answer.read().decode()
    connection.close()
    return text


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


if __name__ == "__main__":
    main()
