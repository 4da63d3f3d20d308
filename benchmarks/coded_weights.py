"""Matrices of bfloat16 in 12 bits a number beside plain ones (`--code-weights`): what steps of an engine take on a CPU. JSON out.

    python -m benchmarks.coded_weights --model DIRECTORY

Both engines lie in this process and take turns, step by step, of rows by tokens each. A step is the forward pass and a greedy
choice.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
from tqdm import tqdm

from benchmarks.layer_loops import by_turns, step_of
from benchmarks.memory import read_bandwidth
from buckets import Bucket
from jaxengine import LLM
from jaxengine.bench import machine

FORMS = {"plain": "never", "coded": "always"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--steps", nargs="+", default=["1x1", "2x1", "4x1", "8x1", "16x1", "32x1", "1x128", "8x64"])
    parser.add_argument("--seconds", type=float, default=10, help="of each, about")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    buckets = [Bucket(*map(int, step.split("x"))) for step in arguments.steps]
    rows = max(bucket.batch for bucket in buckets)
    settings: dict[str, Any] = {
        "bucket_planner": "explicit",
        "buckets": tuple(arguments.steps),
        "max_model_len": 256,
        "max_num_seqs": rows,
        "max_num_batched_tokens": max(rows, *(bucket.batch * bucket.seq for bucket in buckets)),
        "num_pages": 8 * rows + 8,
        "skip_tokenizer_init": True,
        "enable_prefix_caching": False,
    }
    engines, starts = {}, {}
    for form, codes in FORMS.items():
        begun = time.perf_counter()
        llm: Any = LLM(model=arguments.model, dtype="bfloat16", code_weights=codes, **settings)
        engines[form], starts[form] = llm._engine.core._runner, round(time.perf_counter() - begun, 1)
    found = []
    for bucket in tqdm(buckets):
        calls = {form: step_of(engine, bucket) for form, engine in engines.items()}
        one, other = ([np.asarray(leaf) for leaf in jax.tree.leaves(call()[0])] for call in calls.values())
        begun = time.perf_counter()
        jax.block_until_ready([call() for call in calls.values()])
        count = max(5, int(arguments.seconds / (time.perf_counter() - begun)))
        found.append(
            {
                "step": f"{bucket.batch}x{bucket.seq}",
                "same": all(np.array_equal(left, right) for left, right in zip(one, other, strict=True)),
                "turns": count,
                "read_gb_s": round(read_bandwidth() / 1e9, 1),
                **by_turns(calls, count),
            }
        )
    result = json.dumps(
        {"what": __doc__.splitlines()[0], "machine": machine.describe(), "start_s": starts, "steps": found}, indent=1
    )
    print(result)
    if arguments.output:
        arguments.output.write_text(result + "\n")


if __name__ == "__main__":
    main()
