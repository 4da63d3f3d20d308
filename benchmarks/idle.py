"""How long the device idles between steps while a server streams to many clients. No model, everything else is real. JSON out.

The device is a clock: a step takes the same time always, begins when it is launched or when the step before it ends, whichever is
later, and yields tokens of a story. Scheduler, detokenisation and HTTP server are those of `jaxengine serve` with the embedded
model: the engine in a process of its own, or with `--engine thread` on a thread of the server's (what
`--disable-frontend-multiprocessing` does). The clients stream completions over loopback from this process. Idle is what lies
between the end of one step and the launch of the next, from the first to the last step in which nine streams of ten decode.

    python benchmarks/idle.py --milliseconds 5 10 20 --streams 256
    python benchmarks/idle.py --milliseconds 10 --streams 64 --drafts 3

With `--drafts` the embedded model's head is there too, and the clock says of each draft whether it was right.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from itertools import pairwise
from pathlib import Path
from typing import Any

import uvloop

from jaxengine.bench import machine

sys.path.append(str(Path(__file__).resolve().parents[1]))  # last: PYTHONPATH may name another commit

from benchmarks.idle_engine import ASKED, build_engine, summary


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--milliseconds", type=float, nargs="+", default=[5.0, 10.0, 20.0], help="lengths of a step")
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--prompt-len", type=int, default=32)
    parser.add_argument("--output-len", type=int, default=900)
    parser.add_argument("--engine", choices=("process", "thread"), default="process")
    parser.add_argument("--viewers", type=int, default=0, help="dashboards that look on")
    parser.add_argument("--engine-options", type=json.loads, default={}, help="further engine options, as JSON")
    parser.add_argument("--drafts", type=int, default=0, help="tokens that are guessed at once")
    parser.add_argument("--serve", type=int, metavar="PORT", help=argparse.SUPPRESS)
    parser.add_argument("--parent", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve is not None:
        serve(arguments)
        return
    results = {f"{milliseconds:g}": measure(arguments, milliseconds) for milliseconds in arguments.milliseconds}
    asked = {name: value for name, value in vars(arguments).items() if name not in ("serve", "parent", "milliseconds")}
    print(json.dumps({"benchmark": "idle", "machine": machine.describe(), **asked, "milliseconds": results}, indent=2))


def measure(arguments: argparse.Namespace, milliseconds: float) -> dict[str, Any]:
    """What the device, server and clients saw of one server's life."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, sys.argv[0], "--serve", str(port), "--parent", str(os.getpid())]
    for name in ("streams", "prompt_len", "output_len", "drafts", "engine"):
        command += [f"--{name.replace('_', '-')}", str(getattr(arguments, name))]
    command += ["--engine-options", json.dumps(arguments.engine_options)]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "seen.json")
        asked = json.dumps([milliseconds, arguments.streams, str(file)])
        server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, ASKED: asked})
        try:
            told = uvloop.run(stream_all(server, port, arguments))
        finally:
            server.send_signal(signal.SIGINT)
            _, errors = server.communicate()
        if server.returncode != 0:
            raise SystemExit(f"the server failed:\n{errors[-3000:]}")
        seen = json.loads(file.read_text())
        if not seen:
            raise SystemExit("at no time nine streams of ten decoded together: ask for a longer --output-len")
        return {**seen, **told}


def serve(arguments: argparse.Namespace) -> None:
    """Serve until SIGINT, or until the process that measures is gone."""
    from jaxengine.contract.messages import Begin
    from jaxengine.embedded import draft_path
    from jaxengine.front.engine_process import EngineProcess
    from jaxengine.options.config import EngineConfig
    from jaxengine.server.address import listening
    from jaxengine.server.launch import run, run_beside
    from jaxengine.server.options import ServerConfig
    from jaxengine.startup.engine_process import die_with

    die_with(arguments.parent)
    length = arguments.prompt_len + arguments.output_len
    options = {
        "max_num_seqs": arguments.streams,
        "page_size": 16,
        "num_pages": 1 + arguments.streams * (length // 16 + 2),
    }
    if arguments.drafts:
        head = {"method": "eagle3", "model": str(draft_path()), "num_speculative_tokens": arguments.drafts}
        options |= {"speculative_config": head, "num_pages": 2 * options["num_pages"]}
    begin = Begin(config=EngineConfig.from_options(warmup="none", **options, **arguments.engine_options))
    config = ServerConfig.from_options(port=arguments.serve, uvicorn_log_level="warning")
    with listening(config.network) as listener:
        if arguments.engine == "process":
            engine = EngineProcess(begin, entry="benchmarks.idle_engine")
            run_beside(listener, [engine], config, config=begin.config)
        else:
            run(listener, lambda: build_engine(begin).front, config)


def is_ready(port: int) -> bool:
    """Whether the server takes requests."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health"):
            return True
    except OSError:  # nobody listens yet, or the engine still starts
        return False


async def stream_all(server: subprocess.Popen[str], port: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """All streams at once, each on a connection of its own: time between the events of a stream, and tokens in each.

    There is more than one where the server sends what came together in one piece.
    """
    while not is_ready(port):
        if server.poll() is not None:
            raise SystemExit(f"the server failed:\n{server.communicate()[1][-3000:]}")
        await asyncio.sleep(0.1)
    viewers = [Viewer() for _ in range(arguments.viewers)]
    readers = [Reader(arguments, number) for number in range(arguments.streams)]
    loop = asyncio.get_running_loop()
    for reader in (*viewers, *readers):
        await loop.create_connection(lambda reader=reader: reader, "127.0.0.1", port)
    await asyncio.gather(*(reader.ended for reader in readers))
    gaps = []
    for reader in readers:
        if b'"finish_reason":"length"' not in reader.tail:
            raise SystemExit(f"a stream broke off after {len(reader.times)} events: {reader.tail!r}")
        gaps += [later - earlier for earlier, later in pairwise(reader.times[len(reader.times) // 4 :])]
    events = sum(len(reader.times) for reader in readers)
    tokens = arguments.streams * arguments.output_len
    seen = {"gap_ms": summary(gaps), "tokens_per_event": round(tokens / events, 2)}
    return seen | ({"viewer_bytes_per_s": round(statistics.median(map(Viewer.rate, viewers)))} if viewers else {})


class Viewer(asyncio.Protocol):
    """One dashboard's stream; `came` are the times and sizes of what came."""

    def __init__(self) -> None:
        self.came: list[tuple[float, int]] = []

    def connection_made(self, transport: Any) -> None:
        transport.write(b"GET /dashboard/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")

    def data_received(self, data: bytes) -> None:
        self.came.append((time.perf_counter(), len(data)))

    def rate(self) -> float:
        """Bytes a second, without what came first: headers, facts and the past. 0 for a visit of a second or two."""
        snapshots = self.came[2:]
        if len(snapshots) < 2:
            return 0.0
        (begun, _), *_, (ended, _) = snapshots
        return sum(size for _, size in snapshots[1:]) / (ended - begun)


class Reader(asyncio.Protocol):
    """One streamed completion; `times` are when its events came, `tail` is what came last."""

    def __init__(self, arguments: argparse.Namespace, number: int) -> None:
        self.times: list[float] = []
        self.tail = b""
        self.ended = asyncio.get_running_loop().create_future()
        ids = [3 + (number * 37 + place * 11) % 2000 for place in range(arguments.prompt_len)]
        body = {"prompt": ids, "max_tokens": arguments.output_len, "temperature": 0, "ignore_eos": True, "stream": True}
        self._body = json.dumps(body).encode()

    def connection_made(self, transport: Any) -> None:
        head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
        transport.write(f"{head}Content-Length: {len(self._body)}\r\n\r\n".encode() + self._body)

    def data_received(self, data: bytes) -> None:
        self.tail = (self.tail + data)[-2000:]
        self.times += [time.perf_counter()] * data.count(b"data: {")

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set_result(None)


if __name__ == "__main__":
    main()
