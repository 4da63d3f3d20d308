"""What it costs to send a picture's patches to the engine's process. JSON out.

    python -m benchmarks.picture_messages

A picture of 1,024 x 1,024 pixels as Qwen2.5-VL's processor makes it (74 x 74 patches of 1,176 float32: 25.8 MB) passes between
two processes, as the request that shows it does, with arrays within the message and beside it (`contract/wire.py`), in turns.
`front_cpu_ms` and `engine_cpu_ms` are medians of the processor time of who sends and who receives; `send_ms` is wall time.
"""

from __future__ import annotations

import json
import multiprocessing
import statistics
import time
from typing import Any

import numpy as np

from jaxengine.bench import machine
from jaxengine.contract import wire
from jaxengine.contract.wire import Wire

COUNT = 20


def receive(connection: Any, reply: Any) -> None:
    """The engine's process."""
    end, cpu = Wire(connection), []
    for _ in range(COUNT):
        began = time.thread_time()
        end.receive()
        cpu.append(time.thread_time() - began)
    reply.send(statistics.median(cpu))


def measure(beside: int) -> dict[str, float]:
    """With arrays of so many bytes beside their messages."""
    wire.BESIDE = beside
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    result, reply = context.Pipe(duplex=False)
    process = context.Process(target=receive, args=(there, reply))
    process.start()
    end, patches = Wire(here), np.random.default_rng(0).normal(size=(74 * 74, 1176)).astype(np.float32)
    cpu, wall = [], []
    for _ in range(COUNT):
        began, began_cpu = time.perf_counter(), time.thread_time()
        end.send(patches)
        cpu.append(time.thread_time() - began_cpu)
        wall.append(time.perf_counter() - began)
    values = {
        "front_cpu_ms": statistics.median(cpu),
        "engine_cpu_ms": result.recv(),
        "send_ms": statistics.median(wall),
    }
    process.join()
    return {name: round(1e3 * value, 2) for name, value in values.items()}


def main() -> None:
    """Run the command line."""
    rounds = [{"within": measure(1 << 40), "beside": measure(1 << 16)} for _ in range(3)]
    print(json.dumps({"machine": machine.describe(), "megabytes": 25.8, "pictures": COUNT, "rounds": rounds}, indent=1))


if __name__ == "__main__":
    main()
