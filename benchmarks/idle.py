"""How long the device idles between steps while a server streams to many clients. No model, everything else is real. JSON out.

The device is a clock: a step takes the same time always, begins when it is launched or when the step before it ends, whichever is
later, and yields tokens of a story. Scheduler, detokenisation and HTTP server are those of `jaxengine serve` with the embedded
model, in a process of their own; the clients stream completions over loopback from this one. Idle is what lies between the end
of one step and the launch of the next, over all steps in which every stream decodes.

    python benchmarks/idle.py --milliseconds 5 10 20 --streams 256
    python benchmarks/idle.py --milliseconds 10 --streams 64 --drafts 3

With `--drafts` the embedded model's head is there too, and the clock says of each draft whether it was right.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import uvloop

from jaxengine.bench import machine

sys.path.append(str(Path(__file__).resolve().parents[1]))  # last: PYTHONPATH may name another commit

from jaxengine.contract.batch import Batch, Sample, StepResult

STORY = """Once upon a time there was a little fox who lived near the big river. One day the fox found a red ball under a tree.
"Whose ball is this?" asked the fox. A small bird said: "It is mine, but I cannot carry it." So they rolled it home together, and
the mother of the bird was so happy that she gave them both a warm cake with 3 berries. After that they played every morning. """
WARM_UP_STEPS = 20


class Launched(NamedTuple):
    """When a step was launched and is done, how many rows it decoded, the tokens it brought, and processor seconds of thread and
    process by then."""

    begun: float
    done: float
    decoded: int
    tokens: int
    thread_s: float
    process_s: float


class Clock:
    """A device on which every step takes `seconds`; `steps` keeps what became of them."""

    max_in_flight = 2

    def __init__(self, seconds: float, story: list[int]) -> None:
        self.steps: list[Launched] = []
        self._seconds = seconds
        self._story = np.array(story, np.int32)
        self._places = np.zeros(0, np.int64)
        self._done = 0.0

    def launch(self, batch: Batch) -> Step:
        """Each row goes on in the story, at a place of its own. Of its drafts none to three are right, by turns."""
        counts = [want.last if isinstance(want, Sample) else int(want is not None) for want in batch.rows.wants]
        rows, kept = len(counts), sum(counts)
        if kept == rows:
            return self.begin(kept, rows if batch.num_tokens == rows else 0)
        places, number, wrong = 0, len(self.steps), []
        for slot, count in zip(batch.rows.slots, counts, strict=True):
            wrong += range(places + min(1 + (number + slot) % 4, count), places + count)
            places += count
        return self.begin(kept, rows if batch.num_tokens == kept else 0, wrong)

    def begin(self, sampled: int, decoded: int, wrong: Sequence[int] = ()) -> Step:
        """A step that yields `sampled` tokens, of which those at the places `wrong` stand behind a draft that is not right."""
        now = time.perf_counter()
        self._done = max(now, self._done) + self._seconds
        self.steps.append(
            Launched(now, self._done, decoded, sampled - len(wrong), time.thread_time(), time.process_time())
        )
        if sampled > len(self._places):
            # np.arange lets go of the interpreter: not in every step, where that would be counted as the engine's.
            self._places = 31 * np.arange(sampled)
        places = (len(self.steps) + self._places[:sampled]) % len(self._story)
        tokens = self._story[places]
        if wrong:
            tokens[wrong] = -1
        return Step(self._done, StepResult(tokens, (None,) * sampled))

    def close(self) -> None:
        pass


class Step:
    """A step that is done at a time."""

    def __init__(self, done: float, result: StepResult) -> None:
        self._done = done
        self._result = result

    def wait(self) -> StepResult:
        time.sleep(max(0.0, self._done - time.perf_counter()))
        return self._result


def main(clock: type[Clock] = Clock) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--milliseconds", type=float, nargs="+", default=[5.0, 10.0, 20.0], help="lengths of a step")
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--prompt-len", type=int, default=32)
    parser.add_argument("--output-len", type=int, default=600)
    parser.add_argument("--viewers", type=int, default=0, help="dashboards that look on")
    parser.add_argument("--engine-options", type=json.loads, default={}, help="further engine options, as JSON")
    parser.add_argument("--drafts", type=int, default=0, help="tokens that are guessed at once")
    parser.add_argument("--serve", type=int, metavar="PORT", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve is not None:
        print(json.dumps(serve(arguments, clock)))
        return
    results = {f"{milliseconds:g}": measure(arguments, milliseconds) for milliseconds in arguments.milliseconds}
    asked = {name: value for name, value in vars(arguments).items() if name not in ("serve", "milliseconds")}
    print(json.dumps({"benchmark": "idle", "machine": machine.describe(), **asked, "milliseconds": results}, indent=2))


def measure(arguments: argparse.Namespace, milliseconds: float) -> dict[str, Any]:
    """What server and clients saw of one server's life."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, sys.argv[0], "--serve", str(port), "--milliseconds", str(milliseconds)]
    for name in ("streams", "prompt_len", "output_len", "drafts"):
        command += [f"--{name.replace('_', '-')}", str(getattr(arguments, name))]
    command += ["--engine-options", json.dumps(arguments.engine_options)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        seen = uvloop.run(stream_all(server, port, arguments))
    finally:
        server.send_signal(signal.SIGINT)
        printed, errors = server.communicate()
    if server.returncode != 0:
        raise SystemExit(f"the server failed:\n{errors[-3000:]}")
    return {**json.loads(printed.splitlines()[-1]), **seen}


def serve(arguments: argparse.Namespace, clock: type[Clock]) -> dict[str, Any]:
    """Serve until SIGINT; what the device saw."""
    from jaxengine.embedded import draft_path
    from jaxengine.front.front import Front
    from jaxengine.options.config import EngineConfig
    from jaxengine.server.address import listening
    from jaxengine.server.launch import run
    from jaxengine.server.options import ServerConfig
    from jaxengine.startup.build import build_engine

    length = arguments.prompt_len + arguments.output_len
    options = {
        "max_num_seqs": arguments.streams,
        "page_size": 16,
        "num_pages": 1 + arguments.streams * (length // 16 + 2),
    }
    if arguments.drafts:
        head = {"method": "eagle3", "model": str(draft_path()), "num_speculative_tokens": arguments.drafts}
        options |= {"speculative_config": head, "num_pages": 2 * options["num_pages"]}
    devices = []

    def build() -> Front:
        engine = build_engine(EngineConfig.from_options(warmup="none", **options, **arguments.engine_options))
        assert engine.front.tokenizer is not None
        devices.append(
            clock(arguments.milliseconds[0] / 1000, engine.front.tokenizer.encode(STORY, add_special_tokens=False))
        )
        engine.core._runner = devices[0]
        return engine.front

    config = ServerConfig.from_options(port=arguments.serve, uvicorn_log_level="warning")
    with listening(config.network) as listener:
        run(listener, build, config)
    decoded = [step.decoded == arguments.streams for step in devices[0].steps]
    first = decoded.index(True) + WARM_UP_STEPS
    last = len(decoded) - 1 - decoded[::-1].index(True)
    steady = devices[0].steps[first : last + 1]
    idle = [max(0.0, after.begun - before.done) for before, after in pairwise(steady)]
    count, wall = len(idle), steady[-1].done - steady[0].done
    return {
        "steps": count,
        "whole_steps": sum(decoded[first : last + 1]),
        "idle_share": round(sum(idle) / wall, 4),
        "idle_ms": summary(idle),
        "tokens_per_s": round(sum(step.tokens for step in steady[1:]) / wall),
        "engine_thread_cpu_ms_per_step": round(1000 * (steady[-1].thread_s - steady[0].thread_s) / count, 3),
        "process_cpu_ms_per_step": round(1000 * (steady[-1].process_s - steady[0].process_s) / count, 3),
    }


async def stream_all(server: subprocess.Popen[str], port: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """All streams at once, each on a connection of its own: time between the events of a stream, and tokens in each.

    There is more than one where the server sends what came together in one piece.
    """
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            break
        except OSError:
            if server.poll() is not None:
                raise SystemExit(f"the server failed:\n{server.communicate()[1][-3000:]}") from None
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


def summary(seconds: list[float]) -> dict[str, float]:
    """Median and 99th percentile in milliseconds."""
    ordered = sorted(1000 * value for value in seconds)
    return {"p50": round(statistics.median(ordered), 3), "p99": round(ordered[int(0.99 * (len(ordered) - 1))], 3)}


if __name__ == "__main__":
    main()
