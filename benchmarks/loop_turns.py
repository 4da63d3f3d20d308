"""The longest turns of the server's event loop while it answers large and hostile requests. JSON out.

    python -m benchmarks.loop_turns --large
    python -m benchmarks.loop_turns --only "a text of 3.9 MB" "n of 128"

What one turn takes of the processor is what every other stream waits for at least. Unlike the gaps of `neighbours.py`, whose
requests these are, it says so on a machine that is busy with other things too. Times are in milliseconds of the loop's thread;
`collecting` is the longest collection of garbage among them.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import multiprocessing
import os
import socket
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.neighbours import BODIES, LARGE, LONGEST_S, send_batch, send_body
from jaxengine.bench import machine

LEAST_S = 0.002
"""Turns that are noted."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    bodies = {**BODIES, **LARGE}
    parser.add_argument("--only", nargs="*", choices=list(bodies), metavar="BODY")
    parser.add_argument("--large", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        notes = Path(directory) / "turns"
        with watched_server(notes) as port:
            names = options.only or list(LARGE if options.large else BODIES)
            report = {name: longest(name, *bodies[name](), port, notes) for name in names}
    print(json.dumps({"benchmark": "loop_turns", "machine": machine.describe(), "bodies": report}, indent=2))


def longest(name: str, path: str, body: dict[str, Any], port: int, notes: Path) -> dict[str, Any]:
    """Send one body, and look at the turns until its answer was read."""
    print(name, file=sys.stderr)
    parent, child = multiprocessing.Pipe()
    send = send_batch if path == "/v1/batches" else send_body
    process = multiprocessing.get_context("spawn").Process(
        target=send, args=("127.0.0.1", port, path, json.dumps(body).encode(), child)
    )
    process.start()
    parent.recv()
    begun = time.monotonic()
    parent.send("go")
    status = parent.recv() if parent.poll(LONGEST_S) else 0
    ended = time.monotonic()
    process.kill()
    rows = [json.loads(line) for line in notes.read_text().splitlines()]
    within = [row for row in rows if begun <= row["at"] <= ended]
    return {
        "status": status,
        "took_s": round(ended - begun, 1),
        "longest": [round(ms, 1) for ms in sorted((row["ms"] for row in within), reverse=True)[:3]],
        "collecting": round(max((row["collecting"] for row in within), default=0.0), 1),
    }


@contextlib.contextmanager
def watched_server(notes: Path) -> Iterator[int]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    notes.touch()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(port, notes))
    process.start()
    try:
        while True:
            if not process.is_alive():
                raise RuntimeError(f"the server ended with {process.exitcode}")
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1).close()
                break
            time.sleep(0.2)
        yield port
    finally:
        process.terminate()
        process.join(60)


def _serve(port: int, notes: Path) -> None:
    sys.modules["uvloop"] = None  # type: ignore[assignment]  # whose turns nobody sees
    _watch(notes)
    from jaxengine.cli import main as command

    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    command(["serve", "--port", str(port), "--max-num-seqs", "8"])


def _watch(notes: Path) -> None:
    """Note every turn of an event loop in this process."""
    run, file = asyncio.Handle._run, notes.open("a", buffering=1)
    collecting = begun = 0.0

    def watched(handle: asyncio.Handle) -> None:
        nonlocal collecting
        collecting, before = 0.0, time.thread_time()
        run(handle)
        used = time.thread_time() - before
        if used >= LEAST_S:
            row = {"at": time.monotonic(), "ms": 1e3 * used, "collecting": 1e3 * collecting}
            file.write(json.dumps(row) + "\n")

    def collected(phase: str, info: dict[str, int]) -> None:
        nonlocal collecting, begun
        if threading.current_thread() is threading.main_thread():
            if phase == "start":
                begun = time.thread_time()
            else:
                collecting = max(collecting, time.thread_time() - begun)

    asyncio.Handle._run = watched  # type: ignore[method-assign]
    gc.callbacks.append(collected)


if __name__ == "__main__":
    main()
