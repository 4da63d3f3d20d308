"""What large and hostile requests cost whoever else is served: gaps of a stream, and how long /health takes. JSON out.

    python -m benchmarks.neighbours                     a server of its own with the embedded model
    python -m benchmarks.neighbours --repeat 5 --only "a text of 3.9 MB" "a grammar of 2,000 rules"
    python -m benchmarks.neighbours --large            those with large answers, which take up to a minute each

One client streams a completion and another asks /health again and again; a third sends one body and reads the whole answer, in a
process of its own; a batch it uploads, starts, and asks for until it is done. After each body comes a quiet stretch.
Times are in milliseconds: the longest gap between chunks of the stream, quiet and beside the body, the longest /health, and how
long the body itself took. Of several repeats the median, and of `more` and `health` the least too, which says what the server
does where the machine has other work.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import multiprocessing
import os
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import httpx

from jaxengine.bench import machine

SIZE = 3_900_000
"""Bytes of a body just below the server's limit."""
LONGEST_S = 300.0
SETTLE_S = 0.3
CHAT = [{"role": "user", "content": "hi"}]


def schema(form: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": form}}}


def rules(count: int) -> str:
    """A grammar of so many rules, of which one leads to the next."""
    lines = [
        f"start: r0 // {time.time_ns()}",
        *(f'r{at}: "a" r{at + 1} | "b"' for at in range(count)),
        f'r{count}: "c"',
    ]
    return "\n".join(lines)


def gbnf(count: int) -> str:
    """Such a grammar as llama.cpp writes them, each time another one: what was compiled is kept."""
    return "\n".join(
        [
            f"root ::= r0 # {time.time_ns()}",
            *(f"r{at} ::= [a-z] r{at + 1} | [0-9]" for at in range(count)),
            f'r{count} ::= "c"',
        ]
    )


COMPLETION: dict[str, Any] = {"max_tokens": 30, "ignore_eos": True}
BODIES: dict[str, Callable[[], tuple[str, dict[str, Any]]]] = {
    "nothing": lambda: ("/v1/completions", {"prompt": "a", "max_tokens": 1}),
    "a text of 3.9 MB": lambda: ("/v1/completions", {"prompt": "word " * (SIZE // 5)}),
    "one letter, 3.9 MB": lambda: ("/v1/completions", {"prompt": "a" * SIZE}),
    "white space, 3.9 MB": lambda: ("/v1/completions", {"prompt": " " * SIZE}),
    "a chat of 3.9 MB": lambda: (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "word " * (SIZE // 5)}]},
    ),
    "/v1/responses of 3.9 MB": lambda: ("/v1/responses", {"input": "word " * (SIZE // 5)}),
    "/v1/messages of 3.9 MB": lambda: (
        "/v1/messages",
        {"messages": [{"role": "user", "content": "word " * (SIZE // 5)}], "max_tokens": 1},
    ),
    "/tokenize of 3.9 MB": lambda: ("/tokenize", {"prompt": "word " * (SIZE // 5)}),
    "a text just too long": lambda: ("/v1/completions", {"prompt": "a cat sat " * 3_000}),
    "a chat of 30,000 messages": lambda: ("/v1/chat/completions", {"messages": CHAT * 30_000}),
    "200,000 token ids": lambda: ("/v1/completions", {"prompt": [7] * 200_000}),
    "30,000 prompts": lambda: ("/v1/completions", {"prompt": ["a"] * 30_000}),
    "20,000 unknown fields": lambda: (
        "/v1/completions",
        {"prompt": "a", "max_tokens": 1, **{f"x{at}": 1 for at in range(20_000)}},
    ),
    "a list of 200,000 wrong values": lambda: ("/v1/completions", {"prompt": "a", "stop_token_ids": ["x"] * 200_000}),
    "a grammar of 2,000 rules": lambda: (
        "/v1/completions",
        {"prompt": "a", **COMPLETION, "structured_outputs": {"grammar": rules(2_000)}},
    ),
    "the same in GBNF": lambda: (
        "/v1/completions",
        {"prompt": "a", **COMPLETION, "structured_outputs": {"grammar": gbnf(2_000)}},
    ),
    "a regex of a million states": lambda: (
        "/v1/completions",
        {"prompt": "a", **COMPLETION, "structured_outputs": {"regex": "[ab]*a[ab]{1,100000}"}},
    ),
    "a schema of 2,000 properties": lambda: (
        "/v1/chat/completions",
        {
            "messages": CHAT,
            "max_tokens": 30,
            **schema({"type": "object", "properties": {f"p{at}": {"type": "string"} for at in range(2_000)}}),
        },
    ),
    "50,000 choices": lambda: (
        "/v1/completions",
        {"prompt": "a", "structured_outputs": {"choice": [f"choice {at}" * 5 for at in range(50_000)]}},
    ),
    "all log probabilities": lambda: ("/v1/completions", {"prompt": "a cat " * 500, "max_tokens": 30, "logprobs": 20}),
    "n of 128": lambda: ("/v1/completions", {"prompt": "a", "max_tokens": 16, "n": 128, "temperature": 1.0}),
}

TOKENS_1000 = "a cat sat " * 333
LARGE: dict[str, Callable[[], tuple[str, dict[str, Any]]]] = {
    "prompt_logprobs 20 of 1,000 prompts": lambda: (
        "/v1/completions",
        {"prompt": [TOKENS_1000] * 1000, "max_tokens": 1, "prompt_logprobs": 20},
    ),
    "prompt_logprobs 20 of 100 prompts": lambda: (
        "/v1/completions",
        {"prompt": [TOKENS_1000] * 100, "max_tokens": 1, "prompt_logprobs": 20},
    ),
    "n of 128, 500 tokens, log probabilities": lambda: (
        "/v1/completions",
        {"prompt": "a", "max_tokens": 500, "ignore_eos": True, "n": 128, "temperature": 1.0, "logprobs": 20},
    ),
    "a chat of n 128, 500 tokens, log probabilities": lambda: (
        "/v1/chat/completions",
        {
            "messages": CHAT,
            "max_tokens": 500,
            "ignore_eos": True,
            "n": 128,
            "temperature": 1.0,
            "logprobs": True,
            "top_logprobs": 20,
        },
    ),
    "n of 128, 500 tokens": lambda: (
        "/v1/completions",
        {"prompt": "a", "max_tokens": 500, "ignore_eos": True, "n": 128, "temperature": 1.0},
    ),
    "echo of 64 prompts, log probabilities": lambda: (
        "/v1/completions",
        {"prompt": ["a cat sat " * 100] * 64, "max_tokens": 1, "echo": True, "logprobs": 5},
    ),
    "a response with log probabilities": lambda: (
        "/v1/responses",
        {
            "input": "hi",
            "max_output_tokens": 900,
            "ignore_eos": True,
            "top_logprobs": 20,
            "include": ["message.output_text.logprobs"],
        },
    ),
    "a batch of 300 lines": lambda: (
        "/v1/batches",
        {"prompt": "Once", "max_tokens": 30, "ignore_eos": True, "logprobs": 5},
    ),
}
BATCH_LINES = 300


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--only", nargs="*", choices=[*BODIES, *LARGE], metavar="BODY")
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--url", help="a server that runs, as host:port (default: one of its own)")
    options = parser.parse_args()
    with server(options.url) as address:
        asyncio.run(_run(address, options))


async def _run(address: str, options: argparse.Namespace) -> None:
    host, _, port = address.rpartition(":")
    watch = Watch(host, int(port))
    bodies = {**BODIES, **LARGE}
    names = options.only or list(LARGE if options.large else BODIES)
    found: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    async with watch:
        for _ in range(options.repeat):
            for name in names:
                path, body = bodies[name]()
                found[name].append(await beside(watch, path, json.dumps(body).encode()))
    report = {name: _summary(runs) for name, runs in found.items()}
    print(json.dumps({"benchmark": "neighbours", "machine": machine.describe(), "bodies": report}, indent=2))


def _summary(runs: list[dict[str, float]]) -> dict[str, Any]:
    more = [run["gap"] - run["quiet_gap"] for run in runs]
    return {
        "status": sorted({int(run["status"]) for run in runs}),
        "took": round(statistics.median(run["took"] for run in runs)),
        "quiet_gap": round(statistics.median(run["quiet_gap"] for run in runs)),
        "gap": round(statistics.median(run["gap"] for run in runs)),
        "more": [round(statistics.median(more)), round(min(more))],
        "health": [round(statistics.median(run["health"] for run in runs)), round(min(run["health"] for run in runs))],
        "quiet_health": round(statistics.median(run["quiet_health"] for run in runs)),
    }


async def beside(watch: Watch, path: str, body: bytes) -> dict[str, float]:
    """Send the body, and what others saw of it; before it as long a time without."""
    parent, child = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=send_batch if path == "/v1/batches" else send_body, args=(watch.host, watch.port, path, body, child)
    )
    process.start()
    await asyncio.to_thread(parent.poll, LONGEST_S)  # it is ready
    parent.recv()
    begun = time.perf_counter()
    parent.send("go")
    await asyncio.to_thread(parent.poll, LONGEST_S)
    status = parent.recv() if parent.poll() else 0
    took = time.perf_counter() - begun
    await asyncio.sleep(SETTLE_S)
    ended = time.perf_counter()
    await asyncio.to_thread(process.join, 1)
    process.kill()
    quiet = time.perf_counter()
    await asyncio.sleep(min(max(ended - begun, 1.0), 5.0))
    return {
        "status": status,
        "took": 1e3 * took,
        "gap": watch.longest_gap(begun, ended),
        "quiet_gap": watch.longest_gap(quiet, time.perf_counter()),
        "health": watch.longest_health(begun, ended),
        "quiet_health": watch.longest_health(quiet, time.perf_counter()),
    }


def send_body(host: str, port: int, path: str, body: bytes, pipe: Any) -> None:
    with socket.create_connection((host, port), LONGEST_S) as connection:
        pipe.send("ready")
        pipe.recv()
        connection.sendall(_head("POST", path, f"{host}:{port}", len(body), "Connection: close\r\n") + body)
        status = connection.recv(64).split()[1:2]
        while connection.recv(1 << 20):
            pass
        pipe.send(int(status[0]) if status else 0)


def send_batch(host: str, port: int, path: str, body: bytes, pipe: Any) -> None:
    line = {"method": "POST", "url": "/v1/completions", "body": json.loads(body)}
    lines = "\n".join(json.dumps({"custom_id": str(number), **line}) for number in range(BATCH_LINES))
    url = f"http://{host}:{port}"
    pipe.send("ready")
    pipe.recv()
    with httpx.Client(base_url=url, timeout=LONGEST_S) as client:
        kept = client.post("/v1/files", files={"file": ("lines.jsonl", lines)}, data={"purpose": "batch"}).json()
        asked = {"input_file_id": kept["id"], "endpoint": "/v1/completions", "completion_window": "24h"}
        batch = client.post(path, json=asked).json()
        while batch["status"] in ("validating", "in_progress", "finalizing"):
            time.sleep(0.2)
            batch = client.get(f"{path}/{batch['id']}").json()
        pipe.send(200 if batch["status"] == "completed" and not batch["request_counts"]["failed"] else 500)


def _head(method: str, path: str, host: str, length: int, more: str = "") -> bytes:
    fields = f"Host: {host}\r\nContent-Type: application/json\r\n{more}Content-Length: {length}"
    return f"{method} {path} HTTP/1.1\r\n{fields}\r\n\r\n".encode()


class Watch:
    """A stream that never ends for long, and questions after the server's health; when what came."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port
        self._chunks: list[float] = []
        self._health: list[tuple[float, float]] = []

    async def __aenter__(self) -> Watch:
        self._tasks = [asyncio.create_task(self._stream()), asyncio.create_task(self._ask())]
        await asyncio.sleep(2)
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        for result in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(result, Exception):
                raise result

    def longest_gap(self, begun: float, ended: float) -> float:
        """Milliseconds between two chunks, of which one may have come before `begun`."""
        gaps = itertools.pairwise(self._chunks)
        within = [after - before for before, after in gaps if after > begun and 0 <= before < ended]
        return 1e3 * max(within, default=0.0)

    def longest_health(self, begun: float, ended: float) -> float:
        """Milliseconds of the slowest answer that somebody waited for in that time."""
        return 1e3 * max((took for at, took in self._health if at + took > begun and at < ended), default=0.0)

    async def _stream(self) -> None:
        body = {"prompt": "Once", "max_tokens": 400, "ignore_eos": True, "stream": True, "temperature": 0}
        data = json.dumps(body).encode()
        while True:
            reader, writer = await asyncio.open_connection(self.host, self.port)
            writer.write(_head("POST", "/v1/completions", f"{self.host}:{self.port}", len(data)) + data)
            head = await reader.readuntil(b"\r\n\r\n")
            if b" 200 " not in head[:20]:
                raise RuntimeError(f"the stream was refused: {head!r}")
            self._chunks.append(-1.0)  # between two streams is no gap
            async for line in reader:
                if line == b"data: [DONE]\n":
                    break
                if line.startswith(b"data: "):
                    self._chunks.append(time.perf_counter())
            writer.close()

    async def _ask(self) -> None:
        reader, writer = await asyncio.open_connection(self.host, self.port)
        while True:
            begun = time.perf_counter()
            while True:
                try:
                    await self._health_of(reader, writer)
                    break
                except (asyncio.IncompleteReadError, ConnectionError):  # it was idle for too long: time goes on
                    reader, writer = await asyncio.open_connection(self.host, self.port)
            self._health.append((begun, time.perf_counter() - begun))
            await asyncio.sleep(0.01)

    async def _health_of(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(f"GET /health HTTP/1.1\r\nHost: {self.host}:{self.port}\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        await reader.readexactly(length)


@contextlib.contextmanager
def server(address: str | None) -> Iterator[str]:
    if address is not None:
        yield address
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "jaxengine", "serve", "--port", str(port), "--max-num-seqs", "8"]
    process = subprocess.Popen(command, env=os.environ, stdout=subprocess.DEVNULL)
    try:
        while True:
            if process.poll() is not None:
                raise RuntimeError(f"the server ended with {process.returncode}")
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1).close()
                break
            time.sleep(0.2)
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(60)


if __name__ == "__main__":
    main()
