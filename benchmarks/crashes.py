"""Streams over HTTP while their engine is killed again and again: every one ends as in a run that nobody disturbed. JSON out.

    python -m benchmarks.crashes --fault kill --times 20 --output benchmarks/results/crashes.json

Faults: `kill` (SIGKILL), `stop` (SIGSTOP, which the supervisor notices by silence), `step` (a step raises), `memory` (a step runs
into the limit of the process's memory). They come at random moments: a random while after the engine took requests again, or
while it starts. `next_token_s` is from the fault to the next chunk of any stream.

The requests are of every kind that a crash might tell apart: with and without seeds, grammars, penalties, n = 2, stop strings,
log probabilities of output and prompt. Of each choice the text, the tokens, the log probabilities and the reasons are compared.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from jaxengine.bench import machine

FAULTS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "step": signal.SIGUSR1, "memory": signal.SIGUSR2}
OPTIONS = (
    "--max-model-len=1024",
    "--max-num-seqs=64",
    "--no-access-log",
    "--max-engine-restarts=1000",
    "--deterministic",
)
NOTICED_S = 0.3
"""Chunks that come so soon after a fault were under way before it."""

Answer = dict[int, dict[str, Any]]
"""By choice: text, tokens, log probabilities, reason."""


@dataclass
class Served:
    """A server that runs, and when chunks came from it."""

    url: str
    pid: int
    arrivals: list[float] = field(default_factory=list)

    @property
    def engines(self) -> list[int]:
        """The processes of its engines."""
        found = map(int, Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split())
        return [child for child in found if "engine" in Path(f"/proc/{child}/cmdline").read_text()]


@asynccontextmanager
async def served(options: Sequence[str] = OPTIONS) -> AsyncIterator[Served]:
    """A server of the embedded model, ready."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "benchmarks.faulty_engine", "serve", f"--port={port}", *options]
    log = open(os.environ.get("CRASHES_LOG", os.devnull), "ab")  # noqa: SIM115
    server = subprocess.Popen(command, stderr=log, stdout=log)
    made = Served(f"http://127.0.0.1:{port}", server.pid)
    try:
        async with httpx.AsyncClient(base_url=made.url, timeout=600) as client:
            while not await is_ready(client):
                assert server.poll() is None, f"the server ended with status {server.returncode}"
                await asyncio.sleep(0.1)
        yield made
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(60)
        log.close()


async def is_ready(client: httpx.AsyncClient) -> bool:
    """Whether /health says so."""
    try:
        return (await client.get("/health")).status_code == 200
    except httpx.TransportError:
        return False


def bodies(count: int, *, seed: int = 0, tokens: int = 250) -> list[dict[str, Any]]:
    """Requests of all kinds, those without a seed first."""
    chance = random.Random(seed)
    schema = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}}
    kinds: list[dict[str, Any]] = [
        {"temperature": 0.8},
        {"temperature": 1.0, "top_p": 0.9, "n": 2},
        {"temperature": 0, "logprobs": 2},
        {"temperature": 0.7, "seed": 1, "frequency_penalty": 0.4, "presence_penalty": 0.2, "repetition_penalty": 1.1},
        {"temperature": 0.9, "seed": 2, "n": 2, "logprobs": 1},
        {"temperature": 0.8, "seed": 3, "structured_outputs": {"json": schema}, "ignore_eos": False},
        {"temperature": 0, "prompt_logprobs": 1, "logprobs": 1, "stream": False, "seed": 5},
        {"temperature": 0.9, "seed": 4, "stop": ["the end", "Lily"], "bad_words": ["girl"], "ignore_eos": False},
    ]
    made = []
    for number in range(count):
        kind = kinds[number % len(kinds)]
        prompt = [chance.randrange(300, 2000) for _ in range(chance.randrange(5, 60))]
        made.append(
            {
                "prompt": prompt,
                "max_tokens": chance.randrange(tokens // 2, tokens),
                "ignore_eos": True,
                "stream": True,
                "return_token_ids": True,
                **kind,
            }
        )
    return sorted(made, key=lambda body: "seed" in body)


async def ask(client: httpx.AsyncClient, body: dict[str, Any], served: Served, accepted: asyncio.Event) -> Answer:
    """The answer to one request, chunk by chunk; `accepted` once the server has answered at all."""
    answer: Answer = {}
    async with client.stream("POST", "/v1/completions", json=body) as response:
        accepted.set()
        assert response.status_code == 200, (await response.aread())[:500]
        if not body["stream"]:
            for choice in json.loads(await response.aread())["choices"]:
                add(answer.setdefault(choice["index"], {}), choice)
            return answer
        async for line in response.aiter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            served.arrivals.append(time.monotonic())
            chunk = json.loads(line[6:])
            assert "error" not in chunk, chunk
            for choice in chunk["choices"]:
                add(answer.setdefault(choice["index"], {}), choice)
    return answer


def add(known: dict[str, Any], choice: dict[str, Any]) -> None:
    """Add what a chunk says of a choice."""
    known["text"] = known.get("text", "") + choice["text"]
    known["reason"] = choice["finish_reason"], choice.get("stop_reason")
    for name in ("token_ids", "prompt_logprobs"):
        known[name] = known.get(name, []) + (choice.get(name) or [])
    for name, values in (choice.get("logprobs") or {}).items():
        if name != "text_offset":
            known[name] = known.get(name, []) + values


async def ask_all(served: Served, wanted: Sequence[dict[str, Any]], begun: asyncio.Event) -> list[Answer]:
    """All answers. Requests arrive in order, so that seeds which the server draws are those of another run."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=served.url, timeout=600, limits=limits) as client:
        tasks = []
        for body in wanted:
            accepted = asyncio.Event()
            tasks.append(asyncio.ensure_future(ask(client, body, served, accepted)))
            if "seed" not in body:
                await accepted.wait()
        begun.set()
        return list(await asyncio.gather(*tasks))


async def disturb(served: Served, fault: str, times: int, chance: random.Random, begun: asyncio.Event) -> list[float]:
    """Strike the engine at random moments; from each fault to the next token."""
    waits = []
    await begun.wait()
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as client:
        for number in range(times):
            early = fault == "kill" and number % 5 == 4  # while the engine starts
            await asyncio.sleep(chance.uniform(0.3, 1.0) if early else chance.uniform(2.0, 8.0))
            struck = time.monotonic()
            for engine in served.engines:
                os.kill(engine, FAULTS[fault])
            if number % 5 == 3 and fault == "kill":
                continue  # the next strikes the one that starts
            while not (served.arrivals and served.arrivals[-1] > struck + NOTICED_S):
                await asyncio.sleep(0.01)
            waits.append(next(at for at in served.arrivals if at > struck + NOTICED_S) - struck)
            while not await is_ready(client):
                await asyncio.sleep(0.05)
    return waits


async def counted(served: Served) -> dict[str, float]:
    """What the server's metrics say of it."""
    async with httpx.AsyncClient(base_url=served.url) as client:
        lines = (await client.get("/metrics")).text.splitlines()
    names = ("jaxengine:engine_restarts_total", "jaxengine:requests_resumed_total", "jaxengine:requests_poisoned_total")
    return {
        name.partition(":")[2]: sum(float(line.split()[-1]) for line in lines if line.startswith(name))
        for name in names
    }


async def compare(
    fault: str, times: int, *, streams: int = 300, tokens: int = 250, seed: int = 0, options: Sequence[str] = OPTIONS
) -> dict[str, Any]:
    """Run the same requests undisturbed and disturbed, in rounds until there were so many faults.

    Raises:
        AssertionError: a stream differs.
    """
    chance, wanted = random.Random(seed), bodies(streams, tokens=tokens)
    async with served(options) as server:
        began = time.monotonic()
        right = await ask_all(server, wanted, asyncio.Event())
        undisturbed_s = time.monotonic() - began
    waits: list[float] = []
    rounds = 0
    counts: dict[str, float] = {}
    struck = 0
    while struck < times:
        async with served(options) as server:  # seeds that a server draws count from its start
            begun = asyncio.Event()
            striking = asyncio.ensure_future(disturb(server, fault, times - struck, chance, begun))
            found = await ask_all(server, wanted, begun)
            if not striking.done():
                striking.cancel()
            elif (error := striking.exception()) is not None:
                raise error
            else:
                waits += striking.result()
            now = await counted(server)
        different = [number for number, pair in enumerate(zip(found, right, strict=True)) if pair[0] != pair[1]]
        assert not different, f"streams {different} differ, the first: {wanted[different[0]]}"
        rounds += 1
        struck += int(now["engine_restarts_total"])
        counts = {name: counts.get(name, 0.0) + value for name, value in now.items()}
        print(f"round {rounds}: {now}", file=sys.stderr)
    return {
        "fault": fault,
        "streams": streams,
        "tokens_of_all": sum(len(choice["token_ids"]) for answer in right for choice in answer.values()),
        "rounds": rounds,
        "undisturbed_s": round(undisturbed_s, 1),
        **counts,
        "different_streams": 0,
        "next_token_s": {
            "median": round(statistics.median(waits), 2) if waits else None,
            "all": [round(wait, 2) for wait in waits],
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fault", nargs="+", choices=FAULTS, default=["kill"])
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--streams", type=int, default=300)
    parser.add_argument("--tokens", type=int, default=250)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--options", nargs="*", default=[], help="further options of the server")
    parser.add_argument("--output", type=Path)
    asked = parser.parse_args()
    options = (*OPTIONS, *asked.options)
    runs = [
        asyncio.run(
            compare(fault, asked.times, streams=asked.streams, tokens=asked.tokens, seed=asked.seed, options=options)
        )
        for fault in asked.fault
    ]
    report = json.dumps(
        {"benchmark": "crashes", "machine": machine.describe(), "options": options, "runs": runs}, indent=2
    )
    print(report)
    if asked.output is not None:
        asked.output.write_text(report + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
