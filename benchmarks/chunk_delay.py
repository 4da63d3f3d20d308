"""From the end of a step on the device to the arrival of its chunks, with the engine on a thread and in a process. JSON out.

    python -m benchmarks.chunk_delay --streams 256 --step-ms 80

The device computes nothing: a step takes `--step-ms` and yields a token for each stream. It notes when each step ends, and a
client on this machine when each chunk comes. A chunk belongs to the last step that had ended, so steps have to be longer than the
delay; where they are not, `busy` alone says something, of `--steps` that take longer than it takes all streams to begin. `first`,
`median` and `last` are of the chunks of one step, in milliseconds; told are the median and the 99th percentile of all steps that
nine tenths of the streams were in. `busy` is the share of those steps' time that the device had a step, which is the share of the
throughput that it could have had; the library, which has no server, is there for that alone.
"""

from __future__ import annotations

import argparse
import bisect
import json
import os
import selectors
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.process import children, cpu_s, started
from jaxengine.bench import machine
from jaxengine.contract.batch import Batch, StepResult
from jaxengine.contract.messages import Begin, Event, ModelFound
from jaxengine.contract.model_source import ModelSource
from jaxengine.contract.sampling_params import RequestOutputKind, SamplingParams
from jaxengine.embedded import checkpoint_path
from jaxengine.front.engine_process import EngineProcess
from jaxengine.front.inline_client import InlineClient
from jaxengine.front.offline import run_to_end
from jaxengine.front.postprocess import Postprocessor
from jaxengine.host.engine.host import EngineHost
from jaxengine.options.config import EngineConfig
from jaxengine.server.address import listening
from jaxengine.server.options import ServerConfig
from jaxengine.startup.engine import HostedEngine
from jaxengine.startup.engine_process import serve as serve_engine
from jaxengine.text.tokenizer import Tokenizer
from tests.fronts import make_engine

VOCAB = 2048
TOKEN = 500
PROMPT_LEN = 16
MODES = ("library", "thread", "process")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--step-ms", type=float, default=80.0)
    parser.add_argument("--steps", type=int, default=120, help="tokens of each stream")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--serve", choices=MODES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        run_library() if arguments.serve == "library" else run_server(arguments.serve)
        return
    runs: dict[str, list[dict[str, Any]]] = {mode: [] for mode in MODES}
    for _ in range(arguments.rounds):
        for mode in MODES:
            runs[mode].append(measure(mode, arguments))
            print(mode, runs[mode][-1], file=sys.stderr)
    asked = {name: value for name, value in vars(arguments).items() if name != "serve"}
    print(json.dumps({"benchmark": "chunk_delay", "machine": machine.describe(), **asked, "runs": runs}, indent=2))


class PacedRunner:
    """Every step takes the same time, which the interpreter is free for. The ends are written down when it closes."""

    max_in_flight = 2

    def __init__(self, seconds: float, file: Path) -> None:
        self._seconds = seconds
        self._file = file
        self._due = 0.0
        self.ends: list[tuple[float, int]] = []

    def launch(self, batch: Batch) -> PacedStep:
        """Steps run one after the other, however early they are launched."""
        self._due = max(self._due, time.monotonic()) + self._seconds
        return PacedStep(self, self._due, sum(row.num_kept for row in batch.rows))

    def close(self) -> None:
        self._file.write_text(json.dumps(self.ends))


class PacedStep:
    """A step that is due at a time."""

    def __init__(self, runner: PacedRunner, due: float, rows: int) -> None:
        self._runner = runner
        self._due = due
        self._rows = rows

    def wait(self) -> StepResult:
        time.sleep(max(0.0, self._due - time.monotonic()))
        self._runner.ends.append((self._due, self._rows))
        return StepResult(np.full(self._rows, TOKEN, np.int32), (None,) * self._rows)


def paced_engine(tokenizer: Tokenizer | None) -> HostedEngine:
    """As the environment says."""
    streams, seconds, steps = json.loads(os.environ["PACED"])
    length = PROMPT_LEN + steps + 1
    return make_engine(
        runner=lambda *_: PacedRunner(seconds, Path(os.environ["PACED_FILE"])),  # type: ignore[arg-type, return-value]
        tokenizer=tokenizer,
        vocab_size=VOCAB,
        num_pages=1 + streams * (length // 4 + 2),
        max_num_seqs=streams,
        max_num_batched_tokens=4096,
        max_len=length,
    )


def main_of_engine(descriptor: int) -> None:
    """The life of the engine's process."""

    def build(begin: Begin, tell: Callable[[Event], None]) -> EngineHost:
        source = ModelSource(
            path=checkpoint_path(), config_json={}, vocab_size=VOCAB, tokenizer_path=None, config=begin.config
        )
        tell(ModelFound(source))
        return paced_engine(None).host

    serve_engine(descriptor, build)


def run_library() -> None:
    """The same requests without a server."""
    streams, _, steps = json.loads(os.environ["PACED"])
    engine = paced_engine(Tokenizer.load(checkpoint_path()))
    params = SamplingParams(temperature=0, max_tokens=steps, ignore_eos=True, output_kind=RequestOutputKind.FINAL_ONLY)
    requests = [
        engine.front.intake.request(prompt(number), params, request_id=f"{number}") for number in range(streams)
    ]
    run_to_end(InlineClient(engine.host, Postprocessor(engine.front.tokenizer)), requests, show_progress=False)
    engine.close()


def run_server(mode: str) -> None:
    """Serve until a signal."""
    from jaxengine.server.launch import run, run_beside

    options = ServerConfig.from_options(port=int(os.environ["PACED_PORT"]), access_log=False)
    with listening(options.network) as listener:
        if mode == "thread":
            run(listener, lambda: paced_engine(Tokenizer.load(checkpoint_path())).front, options)
            return

        begin = Begin(config=EngineConfig.from_options())

        def launch(_: int) -> EngineProcess:
            return EngineProcess(begin, entry="benchmarks.chunk_delay_engine")

        run_beside(listener, [launch(0)], options, config=begin.config, launch=launch)


def measure(mode: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """What the chunks of one server's steps took."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "ends.json"
        os.environ["PACED"] = json.dumps([arguments.streams, arguments.step_ms / 1000, arguments.steps])
        os.environ |= {"PACED_FILE": str(file), "PACED_PORT": str(port)}
        command = [sys.executable, "-m", "benchmarks.chunk_delay", "--serve", mode]
        if mode == "library":
            subprocess.run(command, check=True)
            return {"busy": busy(full_steps(json.loads(file.read_text()), arguments), arguments)}
        with started(command) as server:
            wait_for(port)
            processes = [server.pid, *children(server.pid, "chunk_delay_engine")]
            before = [cpu_s(pid) for pid in processes]
            arrivals = stream_all(port, arguments)
            tokens = arguments.streams * arguments.steps
            spent = [round(1e6 * (cpu_s(pid) - then) / tokens, 1) for pid, then in zip(processes, before, strict=True)]
        steps = json.loads(file.read_text())
    full = full_steps(steps, arguments)
    ends = [end for end, _ in steps]
    delays: dict[float, list[float]] = {end: [] for end in full}
    for arrival in arrivals:
        end = ends[bisect.bisect_right(ends, arrival) - 1]
        if end in delays:
            delays[end].append(1000 * (arrival - end))
    found = [sorted(times) for times in delays.values() if times]
    kinds = {
        "first": [times[0] for times in found],
        "median": [float(np.median(times)) for times in found],
        "last": [times[-1] for times in found],
    }
    told = {
        f"{name}_ms": {"p50": round(float(np.median(times)), 2), "p99": round(float(np.percentile(times, 99)), 2)}
        for name, times in kinds.items()
        if times
    }
    return {**told, "busy": busy(full, arguments), "steps": len(found), "server_us_per_token": spent}


def full_steps(steps: list[tuple[float, int]], arguments: argparse.Namespace) -> list[float]:
    """When the steps ended that nine tenths of the streams were in."""
    return [end for end, rows in steps if rows >= 0.9 * arguments.streams]


def busy(ends: list[float], arguments: argparse.Namespace) -> float:
    """The share of the time in which the device had a step."""
    return round((len(ends) - 1) * arguments.step_ms / 1000 / (ends[-1] - ends[0]), 3)


def prompt(number: int) -> list[int]:
    """Token ids of a stream."""
    return [300 + (number + place) % 1000 for place in range(PROMPT_LEN)]


def wait_for(port: int) -> None:
    """Until the server answers requests."""
    import http.client

    while True:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return
        except OSError:
            pass
        time.sleep(0.02)


def stream_all(port: int, arguments: argparse.Namespace) -> list[float]:
    """When chunks came to a client of all streams."""
    waiting = selectors.DefaultSelector()
    for number in range(arguments.streams):
        body = {"prompt": prompt(number), "max_tokens": arguments.steps, "temperature": 0, "ignore_eos": True}
        data = json.dumps({**body, "stream": True}).encode()
        connection = socket.create_connection(("127.0.0.1", port))
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        connection.sendall(head + f"Content-Length: {len(data)}\r\n\r\n".encode() + data)
        waiting.register(connection, selectors.EVENT_READ)
    arrivals: list[float] = []
    while waiting.get_map():
        for key, _ in waiting.select():
            connection = key.fileobj
            assert isinstance(connection, socket.socket)
            piece = connection.recv(1 << 16)
            arrivals.append(time.monotonic())
            if b"data: [DONE]" in piece or not piece:
                waiting.unregister(connection)
                connection.close()
    return arrivals


if __name__ == "__main__":
    main()
