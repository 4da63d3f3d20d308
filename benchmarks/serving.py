"""Load on a running server: many streams, clients that leave, bodies that are wrong or large, long requests cancelled. JSON out.

    python -m jaxengine.serve --port 8000 --no-access-log &
    python benchmarks/serving.py load --port 8000 --streams 300 --requests 10000 --disconnects 0.05 --malformed 0.05
    python -m jaxengine.serve --port 8001 --hf-overrides '{"max_position_embeddings": 16384}' --max-model-len 12000 &
    python benchmarks/serving.py cancel --port 8001 --requests 200 --tokens 10000 --after 0.5
    python benchmarks/serving.py neighbour --port 8000 --megabytes 3.9

What HTTP costs beside an offline run is in `server.py`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
import urllib.request
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from jaxengine.bench import machine

GAUGES = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
MALFORMED = (
    b"{",
    b'{"prompt": 5, "max_tokens": 1}',
    b'{"prompt": "a", "temperature": -1}',
    b'{"prompt": "a", "n": 1000000}',
    b'{"prompt": "\\ud800"}',
    b'{"prompt": "a", "max_tokens": 1e99}',
)
NOTICED_MS = 50.0
"""More than that is what a large body may not add to a neighbour's gap, nor /health take."""
SAMPLES = 20
"""Readings of the server's memory in a run."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    load = commands.add_parser("load")
    load.add_argument("--streams", type=int, default=300, help="requests open at once")
    load.add_argument("--requests", type=int, default=10_000)
    load.add_argument("--disconnects", type=float, default=0.05, help="share of clients that leave after a few tokens")
    load.add_argument("--malformed", type=float, default=0.05, help="share of bodies that are wrong")
    load.add_argument("--max-tokens", type=int, default=32, help="each asks for 1 to so many")
    load.add_argument("--seed", type=int, default=0)
    cancel = commands.add_parser("cancel")
    cancel.add_argument("--requests", type=int, default=200)
    cancel.add_argument("--tokens", type=int, default=10_000)
    cancel.add_argument("--after", type=float, default=0.5, help="seconds until each is cancelled")
    neighbour = commands.add_parser("neighbour")
    neighbour.add_argument("--megabytes", type=float, default=3.9, help="size of the large bodies")
    neighbour.add_argument("--seconds", type=float, default=10.0, help="of quiet, to compare with")
    neighbour.add_argument("--max-tokens", type=int, default=64, help="of each of the neighbour's streams")
    for command in (load, cancel, neighbour):
        command.add_argument("--port", type=int, default=8000)
    arguments = parser.parse_args()
    run = {"load": run_load, "cancel": run_cancel, "neighbour": run_neighbour}[arguments.command]
    report, good = asyncio.run(run(arguments))
    print(
        json.dumps(
            {"benchmark": f"serving {arguments.command}", "machine": machine.describe(), **vars(arguments), **report},
            indent=2,
        )
    )
    return 0 if good else 1


@dataclass
class Tally:
    """What the clients saw."""

    outcomes: Counter[str] = field(default_factory=Counter)
    tokens: int = 0
    first: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    trouble: list[str] = field(default_factory=list)


async def run_load(arguments: argparse.Namespace) -> tuple[dict[str, Any], bool]:
    """Keep `streams` requests open until all are done."""
    chance = random.Random(arguments.seed)
    todo = iter(range(arguments.requests))
    tally = Tally()
    memory: list[float] = []
    before = scrape(arguments.port)
    begun = time.monotonic()

    async def worker() -> None:
        for number in todo:
            if number % (arguments.requests // SAMPLES or 1) == 0:
                memory.append(await asyncio.to_thread(resident, arguments.port))
            kind = chance.random()
            if kind < arguments.malformed:
                await malformed(arguments.port, chance.choice(MALFORMED), tally)
            else:
                leaves = kind < arguments.malformed + arguments.disconnects
                await stream(
                    arguments, chance.randint(1, arguments.max_tokens), leaves=leaves, number=number, tally=tally
                )

    await asyncio.gather(*(worker() for _ in range(arguments.streams)))
    seconds = time.monotonic() - begun
    after = await settled(arguments.port)
    served = {
        name: after[name] - before[name] for name in ("generation_tokens_total", "time_to_first_token_seconds_count")
    }
    report = {
        "seconds": round(seconds, 1),
        "requests_per_second": round(arguments.requests / seconds, 1),
        "tokens_per_second": round(tally.tokens / seconds, 1),
        "outcomes": dict(sorted(tally.outcomes.items())),
        "trouble": tally.trouble[:10],
        "first_token_ms": summary(tally.first),
        "between_tokens_ms": summary(tally.gaps),
        "server_counted": served,
        "gauges_at_the_end": {name: after[name] for name in GAUGES},
        "compile_events": after["compile_events_after_ready_total"],
        "resident_mib": [round(value / 2**20, 1) for value in memory],
        "resident_mib_at_the_end": round(resident(arguments.port) / 2**20, 1),
    }
    return report, not tally.trouble and not any(report["gauges_at_the_end"].values())


async def run_cancel(arguments: argparse.Namespace) -> tuple[dict[str, Any], bool]:
    """Open long requests, cancel each after a while, and ask for something short at once."""
    body = {"prompt": "a", "max_tokens": arguments.tokens, "ignore_eos": True, "stream": True}

    async def one() -> int:
        reader, writer = await send(arguments.port, json.dumps(body).encode())
        received = 0
        try:
            async with asyncio.timeout(arguments.after):
                while piece := await reader.read(65536):
                    received += len(piece)
        except TimeoutError:
            pass
        writer.close()
        return received

    received = await asyncio.gather(*(one() for _ in range(arguments.requests)))
    begun = time.monotonic()
    tally = Tally()
    short = argparse.Namespace(port=arguments.port, max_tokens=4)
    await stream(short, 4, leaves=False, number=0, tally=tally)
    next_s = time.monotonic() - begun
    gauges = await settled(arguments.port)
    idle_s = time.monotonic() - begun
    report = {
        "bytes_received_before_cancelling": summary(received, scale=1.0),
        "next_answer_ms": round(next_s * 1000, 1),
        "idle_after_ms": round(idle_s * 1000, 1),
        "gauges_at_the_end": {name: gauges[name] for name in GAUGES},
        "trouble": tally.trouble,
    }
    return report, not tally.trouble and not any(report["gauges_at_the_end"].values())


async def run_neighbour(arguments: argparse.Namespace) -> tuple[dict[str, Any], bool]:
    """Send large bodies one after the other, and see what that does to somebody's stream and to /health."""
    bodies = large_bodies(int(arguments.megabytes * 1e6))
    ending = asyncio.Event()
    gaps: list[float] = []
    healths: list[float] = []

    async def watch_stream() -> None:
        while not ending.is_set():
            tally = Tally()
            tally.gaps = gaps
            await stream(arguments, arguments.max_tokens, leaves=False, number=0, tally=tally)
            assert not tally.trouble, tally.trouble

    async def watch_health() -> None:
        while not ending.is_set():
            begun = time.monotonic()
            reader, writer = await asyncio.open_connection("127.0.0.1", arguments.port)
            writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            await reader.read()
            writer.close()
            healths.append(time.monotonic() - begun)
            await asyncio.sleep(0.005)

    watchers = [asyncio.create_task(watch_stream()), asyncio.create_task(watch_health())]
    report = {}
    await asyncio.sleep(2.0)
    for name, path, body in [("quiet", "", b""), *bodies]:
        gaps.clear()
        healths.clear()
        begun = time.monotonic()
        status = b""
        if path:
            reader, writer = await send(arguments.port, body, path=path)
            status = (await reader.read()).split(b" ", 2)[1]
            writer.close()
        seconds = time.monotonic() - begun
        await asyncio.sleep(arguments.seconds if not path else 0.5)
        report[name] = {
            "status": status.decode(),
            "seconds": round(seconds, 2),
            "stream_gap_ms": summary(gaps),
            "health_ms": summary(healths),
        }
    ending.set()
    await asyncio.gather(*watchers)
    worst = report["quiet"]["stream_gap_ms"]["max"] + NOTICED_MS
    good = all(
        row["stream_gap_ms"]["max"] <= worst and row["health_ms"]["max"] <= NOTICED_MS for row in report.values()
    )
    return {"bodies": report, "unnoticed": good}, good


def large_bodies(size: int) -> list[tuple[str, str, bytes]]:
    """Names, paths and bodies of about `size` bytes: texts, and values of every kind."""

    def filled(head: str, item: str, tail: str) -> bytes:
        return (head + item * ((size - len(head) - len(tail)) // len(item)) + tail).encode()

    text = "hello world this is a long text "
    pairs = ",".join(f'"{number}":1' for number in range(size // 10))
    return [
        ("text", "/v1/completions", filled('{"prompt":"', text, '"}')),
        ("text without spaces", "/v1/completions", filled('{"prompt":"', "a", '"}')),
        ("text, cut", "/v1/completions", filled('{"truncate_prompt_tokens":9,"max_tokens":1,"prompt":"', text, '"}')),
        ("many texts", "/v1/completions", filled('{"prompt":["a"', f',"{text * 8}"', "]}")),
        ("chat", "/v1/chat/completions", filled('{"messages":[{"role":"user","content":"', text, '"}]}')),
        ("response", "/v1/responses", filled('{"input":"', text, '"}')),
        ("tokenize", "/tokenize", filled('{"prompt":"', text, '"}')),
        ("tokenize a part", "/tokenize", filled('{"prompt":"', text, '"}')[: size // 4] + b'"}'),
        ("ids", "/v1/completions", filled('{"prompt":[1', ",123456", "]}")),
        ("fewer ids", "/v1/completions", filled('{"prompt":[1', ",       123456", "]}")),
        ("ids and a text", "/v1/completions", filled('{"prompt":[1', ",       123456", ',"a"]}')),
        ("lists", "/v1/completions", filled('{"prompt":[[1]', ",[1]", "]}")),
        ("objects", "/v1/completions", filled('{"prompt":"a","x":[{}', ",{}", "]}")),
        ("fewer objects", "/v1/completions", filled('{"prompt":"a","x":[{}', ",{}" + " " * 140, "]}")),
        ("keys", "/v1/completions", f'{{"prompt":"a","logit_bias":{{{pairs}}}}}'.encode()),
        ("messages", "/v1/chat/completions", filled('{"messages":[{}', ',{"role":"user","content":"a"}', "]}")),
        ("detokenize", "/detokenize", filled('{"tokens":[1', ",              99", "]}")),
    ]


async def stream(arguments: argparse.Namespace, tokens: int, *, leaves: bool, number: int, tally: Tally) -> None:
    """One streamed completion, left after two chunks if the client `leaves`."""
    body = {"prompt": f"Once upon a time number {number}", "max_tokens": tokens, "ignore_eos": True, "stream": True}
    begun = last = time.monotonic()
    try:
        reader, writer = await send(arguments.port, json.dumps(body).encode())
        chunks, received = 0, b""
        while piece := await reader.read(65536):
            now = time.monotonic()
            received += piece
            count = piece.count(b"data: {")
            if count and not chunks:
                tally.first.append(now - begun)
            elif count:
                tally.gaps.append(now - last)
            last, chunks = now, chunks + count
            if leaves and chunks >= 2:
                break
        writer.close()
    except OSError as error:
        tally.outcomes["no connection"] += 1
        tally.trouble.append(repr(error))
        return
    if leaves:
        tally.tokens += chunks  # at least: a chunk may carry several
        tally.outcomes["left"] += 1
    elif (
        received.startswith(b"HTTP/1.1 200") and b"data: [DONE]" in received and b'"finish_reason":"length"' in received
    ):
        tally.tokens += tokens
        tally.outcomes["served"] += 1
    else:
        tally.outcomes["failed"] += 1
        tally.trouble.append(received[:300].decode(errors="replace"))


async def malformed(port: int, body: bytes, tally: Tally) -> None:
    """One body that is wrong, which must be refused as such."""
    reader, writer = await send(port, body)
    received = await reader.read()
    writer.close()
    if received.startswith(b"HTTP/1.1 400"):
        tally.outcomes["refused"] += 1
    else:
        tally.outcomes["not refused"] += 1
        tally.trouble.append(received[:300].decode(errors="replace"))


async def send(
    port: int, body: bytes, *, path: str = "/v1/completions"
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """POST a body on a connection of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    writer.write(head.encode() + body)
    return reader, writer


async def settled(port: int, *, seconds: float = 30.0) -> dict[str, float]:
    """The server's metrics once nothing runs, waits or holds pages (or after so many seconds)."""
    deadline = time.monotonic() + seconds
    while True:
        values = await asyncio.to_thread(scrape, port)
        if not any(values[name] for name in GAUGES) or time.monotonic() > deadline:
            return values
        await asyncio.sleep(0.005)


def scrape(port: int) -> dict[str, float]:
    """Metrics without labels of their own, by name without prefix."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as response:
        lines = response.read().decode().splitlines()
    values = {}
    for line in lines:
        name, _, value = line.rpartition(" ")
        if not line.startswith("#"):
            values[name.partition("{")[0].rpartition(":")[2]] = float(value)
    return values


def resident(port: int) -> float:
    """Bytes of memory that the server's process holds."""
    return scrape(port)["process_resident_memory_bytes"]


def summary(values: list[float], *, scale: float = 1000.0) -> dict[str, float]:
    """Median, 95th percentile and largest."""
    ordered = sorted(value * scale for value in values) or [0.0]
    return {
        "median": round(statistics.median(ordered), 2),
        "p95": round(ordered[int(0.95 * (len(ordered) - 1))], 2),
        "max": round(ordered[-1], 2),
    }


if __name__ == "__main__":
    sys.exit(main())
