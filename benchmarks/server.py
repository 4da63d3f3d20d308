"""What HTTP costs: the same requests offline, and streamed over loopback by a client in another process. JSON out.

    python -m benchmarks.server --config config.json --dtype bfloat16 --requests 32
    python -m benchmarks.server --paced 20 --requests 32      no model: every step takes 20 ms and nothing else

With `--paced` the time between tokens is known, so what is more than that is the server's doing.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import uvicorn

from benchmarks import workload
from jaxengine.bench import machine

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from jaxengine.contract.batch import Batch, StepResult
from jaxengine.contract.outputs import RequestOutput
from jaxengine.contract.sampling_params import RequestOutputKind
from jaxengine.front.inline_client import InlineClient
from jaxengine.front.offline import run_to_end
from jaxengine.front.postprocess import Postprocessor
from jaxengine.server.app import create_app
from jaxengine.server.launch import SWITCH_INTERVAL_S
from jaxengine.server.options import ServerConfig
from jaxengine.server.service import Service


def main() -> None:
    if sys.argv[1:2] == ["--client"]:
        asyncio.run(client(sys.argv[2], json.load(sys.stdin)))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    workload.add_model_options(parser)
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--paced", type=float, help="milliseconds of a step that computes nothing, in place of a model")
    arguments = parser.parse_args()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    rng = random.Random(0)
    with open_engine(arguments) as engine:
        batches = [
            [
                prompt["prompt_token_ids"]
                for prompt in workload.prompts(
                    rng, count=arguments.requests, length=arguments.prompt_len, vocab_size=engine.host.facts.vocab_size
                )
            ]
            for _ in range(2 * arguments.repeat)
        ]
        offline = [run_offline(engine, batch, arguments) for batch in batches[: arguments.repeat]]
        with serving(engine) as (url, thread_id):
            streamed = [run_http(url, thread_id, batch, arguments) for batch in batches[arguments.repeat :]]
    rates = [statistics.median(run["tokens_per_s"] for run in runs) for runs in (offline, streamed)]
    gaps = [statistics.median(run["median_gap_ms"] for run in runs) for runs in (offline, streamed)]
    print(
        json.dumps(
            {
                "benchmark": "server",
                "machine": machine.describe(),
                "model": "paced" if arguments.paced else str(arguments.config or arguments.model or "embedded"),
                "requests": arguments.requests,
                "prompt_len": arguments.prompt_len,
                "output_len": arguments.output_len,
                "offline": offline,
                "streamed": streamed,
                "throughput_ratio": round(rates[1] / rates[0], 3),
                "added_gap_ms": round(gaps[1] - gaps[0], 3),
            },
            indent=2,
        )
    )


class PacedRunner:
    """Every step takes the same time, which the interpreter is free for, and yields token 7."""

    max_in_flight = 2

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._due = 0.0

    def launch(self, batch: Batch) -> PacedStep:
        """Steps run one after the other, however early they are launched."""
        self._due = max(self._due, time.perf_counter()) + self._seconds
        return PacedStep(self._due, sum(row.num_kept for row in batch.rows))

    def close(self) -> None:
        pass


class PacedStep:
    """A step that is due at a time."""

    def __init__(self, due: float, rows: int) -> None:
        self._due = due
        self._rows = rows

    def wait(self) -> StepResult:
        time.sleep(max(0.0, self._due - time.perf_counter()))
        return StepResult(np.full(self._rows, 7, np.int32), (None,) * self._rows)


@contextmanager
def open_engine(arguments: argparse.Namespace) -> Iterator[Any]:
    """The engine to measure."""
    if arguments.paced:
        from tests.fronts import make_engine

        pages = 1 + arguments.requests * 24
        engine = make_engine(
            runner=lambda *_: PacedRunner(arguments.paced / 1000), num_pages=pages, max_num_seqs=arguments.requests
        )  # type: ignore[arg-type, return-value]
        yield engine
        return
    arguments.engine_options = {"skip_tokenizer_init": arguments.config is not None, **arguments.engine_options}
    with workload.open_llm(arguments, max_num_seqs=arguments.requests) as llm:
        yield llm._engine


def run_offline(engine: Any, prompts: list[list[int]], arguments: argparse.Namespace) -> dict[str, float]:
    """All prompts at once, without a server. The gap is that between the ends of steps in which nothing was prefilled."""
    params = workload.greedy(arguments.output_len).replace(output_kind=RequestOutputKind.FINAL_ONLY, detokenize=True)
    if engine.front.tokenizer is None:
        params = params.replace(detokenize=False)
    requests = [
        engine.front.intake.request(ids, params, request_id=f"{time.perf_counter_ns()}-{index}")
        for index, ids in enumerate(prompts)
    ]
    ends: list[float] = []

    class Timed(InlineClient):
        def step(self) -> list[RequestOutput]:
            outputs = super().step()
            ends.append(time.perf_counter())
            return outputs

    sync = Timed(engine.host, Postprocessor(engine.front.tokenizer))
    begun = time.perf_counter()
    outputs = run_to_end(sync, requests, show_progress=False)
    elapsed = time.perf_counter() - begun
    tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
    decode = ends[-arguments.output_len // 2 :]
    gaps = [later - earlier for earlier, later in itertools.pairwise(decode)]
    return {"tokens_per_s": round(tokens / elapsed, 1), "median_gap_ms": round(1000 * statistics.median(gaps), 3)}


@contextmanager
def serving(engine: Any) -> Iterator[tuple[str, int]]:
    """The engine behind HTTP in a thread of this process: its address, and the thread's id."""
    service = Service.of(engine.front, ServerConfig.from_options())
    server = uvicorn.Server(
        uvicorn.Config(create_app(service), port=0, log_level="warning", access_log=False, ws="none")
    )
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"127.0.0.1:{port}", thread.native_id or 0
    finally:
        server.should_exit = True
        thread.join()


def run_http(url: str, thread_id: int, prompts: list[list[int]], arguments: argparse.Namespace) -> dict[str, float]:
    """The same prompts streamed to a client process; also the processor time of the event loop per token."""
    before = processor_s(thread_id)
    bodies = [
        {
            "prompt": ids,
            "max_tokens": arguments.output_len,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": arguments.config is not None,  # without a tokenizer there is no text to send
        }
        for ids in prompts
    ]
    printed = subprocess.run(
        [sys.executable, __file__, "--client", url],
        input=json.dumps(bodies),
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    result: dict[str, float] = json.loads(printed)
    spent = processor_s(thread_id) - before
    result["event_loop_us_per_token"] = round(1e6 * spent / (len(prompts) * arguments.output_len), 1)
    return result


def processor_s(thread_id: int) -> float:
    """Processor seconds of a thread of this process."""
    return int(Path(f"/proc/self/task/{thread_id}/schedstat").read_text().split()[0]) / 1e9


async def client(url: str, bodies: list[dict[str, Any]]) -> None:
    """Send all bodies at once, each on a connection of its own, and print what came back how fast."""
    host, port = url.split(":")
    gaps: list[float] = []
    tokens = 0

    async def ask(body: dict[str, Any]) -> None:
        nonlocal tokens
        data = json.dumps(body).encode()
        reader, writer = await asyncio.open_connection(host, int(port))
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {url}\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        previous = None
        own: list[float] = []
        async for line in reader:
            if line == b"data: [DONE]\n":
                break
            if line.startswith(b"data: "):
                now = time.perf_counter()
                if b'"usage"' in line:
                    tokens += json.loads(line[6:])["usage"]["completion_tokens"]
                elif previous is not None:
                    own.append(now - previous)
                previous = now
        gaps.extend(own[len(own) // 2 :])
        writer.close()

    begun = time.perf_counter()
    await asyncio.gather(*(ask(body) for body in bodies))
    elapsed = time.perf_counter() - begun
    print(
        json.dumps(
            {"tokens_per_s": round(tokens / elapsed, 1), "median_gap_ms": round(1000 * statistics.median(gaps), 3)}
        )
    )


if __name__ == "__main__":
    main()
