"""What it costs to pass a step's outcome to another process: microseconds to pickle it and to read it again. JSON out.

python -m benchmarks.messages --sequences 1 64 256
"""

from __future__ import annotations

import argparse
import json
import pickle
import timeit
from collections.abc import Callable
from typing import Any

import numpy as np

from buckets import Bucket
from jaxengine.bench import machine
from jaxengine.contract.batch import RowLogprobs
from jaxengine.contract.messages import StepOutputs
from jaxengine.contract.metrics import EngineStatistics, SchedulerStats, ShapeCount, StepStats
from jaxengine.contract.updates import Admission, SequenceUpdate
from jaxengine.contract.wire import PROTOCOL

SHAPES = [Bucket(batch, seq) for batch in (1, 2, 4, 8, 16) for seq in (1, 16)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 64, 256])
    arguments = parser.parse_args()
    results = []
    for count in arguments.sequences:
        for top in (None, 5):
            outputs = step(count, top)
            data = pickle.dumps(outputs, PROTOCOL)
            results.append(
                {
                    "sequences": count,
                    "top_logprobs": top,
                    "bytes": len(data),
                    "dump_us": microseconds(lambda value=outputs: pickle.dumps(value, PROTOCOL)),
                    "load_us": microseconds(lambda value=data: pickle.loads(value)),
                }
            )
    print(json.dumps({"benchmark": "messages", "machine": machine.describe(), "results": results}, indent=2))


def step(count: int, top: int | None) -> StepOutputs:
    """The outcome of a step in which so many sequences gained a token, with as many of the likeliest ones."""
    logprobs = None if top is None else RowLogprobs(-0.5, 1, np.arange(top, dtype=np.int32), np.ones(top, np.float32))
    updates = [
        SequenceUpdate.of_token(f"{number}", 0, 1000 + number, logprobs and copy(logprobs), Admission(3, 0, 1.5), 7)
        for number in range(count)
    ]
    scheduler = SchedulerStats(
        num_running=count,
        num_waiting=0,
        num_waiting_tokens=0,
        num_preemptions=0,
        kv_cache_usage=0.5,
        prefix_cache_queries=3,
        prefix_cache_hits=2,
        shapes={shape: ShapeCount(3, 4, 5) for shape in SHAPES},
    )
    stats = StepStats(
        shape=SHAPES[0],
        num_tokens=count,
        num_padded_tokens=count,
        step_s=0.01,
        host_gap_s=0.0,
        num_generated_tokens=count,
        first_tokens=(),
        gaps={0.01: count},
    )
    return StepOutputs(
        statistics=EngineStatistics(scheduler=scheduler), busy=True, updates=tuple(updates), finished_steps=(stats,)
    )


def copy(logprobs: RowLogprobs) -> RowLogprobs:
    """Another object, as each sequence has its own."""
    return RowLogprobs(logprobs.logprob, logprobs.rank, logprobs.top_ids.copy(), logprobs.top_logprobs.copy())


def microseconds(call: Callable[[], Any]) -> float:
    """Of one call, at the best of some rounds."""
    return round(1e6 * min(timeit.repeat(call, number=50, repeat=7)) / 50, 1)


if __name__ == "__main__":
    main()
