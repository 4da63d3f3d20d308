"""Layers that are alike as a loop in one program, and one by one: what a decode step takes on a CPU, and its programs. JSON out.

    python -m benchmarks.layer_loops --model DIRECTORY --options '{}' '{"quantization": "int4", "lm_head_dtype": "int4"}'

Both engines of a variant lie in this process and take turns, step by step. `step` is the forward pass and a greedy choice, by the
clock and of the processor, `launch` what of it passes before the call returns. `compile` and `load` are seconds of the processor
for all programs of the forward pass of the bucket, with Python's part. Buckets of over `FEW_PLACES` are left one by one.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental.serialize_executable import deserialize_and_load, serialize
from tqdm import tqdm

from buckets import Bucket
from jaxengine import LLM
from jaxengine.bench import machine
from jaxengine.device.runtime import stages
from jaxengine.device.runtime.forward_programs import forward_programs
from jaxengine.device.runtime.warm_up import dummy_step
from jaxengine.device.sampling import Variant

LOOPS = stages.loops
FORMS: dict[str, Callable[[Any], bool]] = {"one by one": lambda space: False, "loop": LOOPS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--options", nargs="+", type=json.loads, default=[{}], help="of the engines, as JSON")
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 8, 32])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    found = [measure(arguments, options) for options in arguments.options]
    result = json.dumps({"what": __doc__.splitlines()[0], "machine": machine.describe(), "variants": found}, indent=1)
    print(result)
    if arguments.output:
        arguments.output.write_text(result + "\n")


def measure(arguments: argparse.Namespace, options: dict[str, Any]) -> dict[str, Any]:
    buckets = [f"{rows}x1" for rows in arguments.rows]
    shapes: dict[str, Any] = {"bucket_planner": "explicit", "buckets": (*buckets, "1x32")}
    limits = {"max_model_len": 256, "max_num_seqs": max(arguments.rows), "num_pages": 8 * max(arguments.rows) + 8}
    engines, compiling = {}, {}
    for form, loops in FORMS.items():
        stages.loops = loops
        settings = {"skip_tokenizer_init": True, "enable_prefix_caching": False, **shapes, **limits, **options}
        engines[form] = LLM(model=arguments.model, **settings)._engine.core._runner  # type: ignore[attr-defined]
        space = engines[form].space
        compiling[form] = {str(bucket): compile_all(space, bucket) for bucket in space.grid.buckets}
    same, steps = {}, {}
    for rows in tqdm(arguments.rows):
        calls = {form: step_of(engine, Bucket(rows, 1)) for form, engine in engines.items()}
        one, other = ([np.asarray(leaf) for leaf in jax.tree.leaves(call()[0])] for call in calls.values())
        same[rows] = all(np.array_equal(left, right) for left, right in zip(one, other, strict=True))
        steps[rows] = by_turns(calls, arguments.steps)
    return {"options": options, "same": same, "steps": steps, "programs": compiling}


def compile_all(space: Any, bucket: Bucket) -> dict[str, float]:
    begun = time.process_time()
    compiled = [
        program.lower().compile(compiler_options=dict(program.compiler_options))
        for program in forward_programs(space, bucket)
    ]
    compiled_at = time.process_time()
    written = [serialize(each) for each in compiled]
    written_at = time.process_time()
    for each in written:
        deserialize_and_load(*each)
    loaded_at = time.process_time()
    return {
        "programs": len(compiled),
        "compile_cpu_s": round(compiled_at - begun, 2),
        "load_cpu_s": round(loaded_at - written_at, 3),
        "written_kb": round(sum(len(payload) for payload, *_ in written) / 1e3),
    }


def step_of(engine: Any, bucket: Bucket) -> Callable[[], Any]:
    """Hidden states and sampled tokens of dummy rows."""
    launcher, layout = engine.launcher, engine.space.layout(bucket)
    dummy = dummy_step(launcher, layout)
    shape = launcher.sampler.shape(bucket.batch, Variant.GREEDY)

    def step() -> tuple[Any, Any]:
        state = launcher.forward(layout, dummy)
        return state[0], launcher.sample(shape, *state[:2])

    return step


def by_turns(calls: dict[str, Callable[[], Any]], steps: int) -> dict[str, dict[str, float]]:
    """Milliseconds of each, which take turns in being the first."""
    names, found = list(calls), {name: list[tuple[float, float, float]]() for name in calls}
    for _ in range(steps):
        names.append(names.pop(0))
        for name in names:
            begun, begun_cpu = time.perf_counter(), time.process_time()
            result = calls[name]()
            launched = time.perf_counter()
            jax.block_until_ready(result)
            found[name].append((time.perf_counter() - begun, time.process_time() - begun_cpu, launched - begun))
    load = round(os.getloadavg()[0], 1)
    return {name: {**summary(own), "load_average": load} for name, own in found.items()}


def summary(taken: list[tuple[float, float, float]]) -> dict[str, float]:
    by_kind = dict(zip(("step", "cpu", "launch"), zip(*taken, strict=True), strict=True))
    return {
        f"{kind}_{which}_ms": round(1e3 * of(own), 2)
        for kind, own in by_kind.items()
        for which, of in (("median", statistics.median), ("least", min))
    }


if __name__ == "__main__":
    main()
