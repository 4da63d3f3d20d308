"""From process start to the first generated token, each start a fresh process. JSON out, and a picture with --picture.

A start is one of: `nothing` kept; JAX's own disk cache, `jax-cold` and `jax-warm`; our store, `store-cold` and `store-warm`;
a `bundle`; `background`: nothing kept, and ready once the largest shapes are. Whether a cache was hit is counted from JAX's
events and our own records, never inferred from times. The weights are read once before, so that they are in the page cache.
With --vllm the same model is started by vLLM's CPU build (give the Python of an environment that has it).

python benchmarks/startup.py --model DIR --starts nothing store-cold store-warm bundle --threads 2
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tqdm import tqdm

from jaxengine.bench import machine
from jaxengine.bench.startup import first_token

STARTS = ("nothing", "jax-cold", "jax-warm", "store-cold", "store-warm", "bundle", "background")
NEEDS = {"jax-warm": "jax-cold", "store-warm": "store-cold"}
GRIDS = {"default": [], "small": ["--max-num-seqs", "4", "--max-num-batched-tokens", "128"]}

VLLM = """
import json, sys, time
spawned, model = float(sys.argv[1]), sys.argv[2]
clock = lambda: round(time.clock_gettime(time.CLOCK_MONOTONIC) - spawned, 3)
from vllm import LLM, SamplingParams
imported = clock()
llm = LLM(model, max_model_len=8192, max_num_seqs=64)
ready = clock()
llm.generate([{"prompt_token_ids": list(range(1000, 1064))}], SamplingParams(max_tokens=1, temperature=0.0))
print(json.dumps({"imports_s": imported, "ready_s": ready, "first_token_s": clock()}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="checkpoint directory")
    parser.add_argument("--starts", nargs="+", default=list(STARTS), choices=STARTS)
    parser.add_argument("--threads", nargs="+", type=int, default=[os.cpu_count() or 1], help="compile threads")
    parser.add_argument("--grids", nargs="+", default=["default"], choices=list(GRIDS))
    parser.add_argument("--vllm", type=Path, help="Python of an environment with vLLM's CPU build")
    parser.add_argument("--picture", type=Path, help="PNG to write")
    arguments = parser.parse_args()
    for file in arguments.model.glob("*.safetensors"):
        file.read_bytes()
    runs = [
        (grid, threads, start)
        for grid in arguments.grids
        for threads in arguments.threads
        for start in arguments.starts
    ]
    results = []
    with tempfile.TemporaryDirectory() as scratch:
        for grid, threads, start in tqdm(runs):
            places = Path(scratch) / f"{grid} {threads}"
            needed = [NEEDS[start]] if start in NEEDS and NEEDS[start] not in arguments.starts else []
            for name in [*needed, start]:
                result = measure(arguments.model, name, places, grid=grid, threads=threads)
            results.append({"start": start, "grid": grid, "compile_threads": threads, **result})
    if arguments.vllm is not None:
        results.append({"start": "vllm", **run([str(arguments.vllm), "-c", VLLM, now(), str(arguments.model)], {})})
    print(json.dumps({"machine": machine.describe(), "model": arguments.model.name, "starts": results}, indent=1))
    if arguments.picture is not None:
        draw(results, arguments.picture)


def measure(model: Path, start: str, places: Path, *, grid: str, threads: int) -> dict[str, Any]:
    """One start; a bundle is built before, by `jaxengine compile`, and its time told apart."""
    options: dict[str, Any] = {"model": str(model), "compile_threads": threads, "xla_cache_path": "off"}
    words = GRIDS[grid]
    options |= {words[i].removeprefix("--").replace("-", "_"): int(words[i + 1]) for i in range(0, len(words), 2)}
    environment = {}
    extra: dict[str, Any] = {}
    if start.startswith("jax"):
        environment = {
            "JAX_COMPILATION_CACHE_DIR": str(places / "jax"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }
    elif start.startswith("store"):
        options["xla_cache_path"] = str(places / "store")
    elif start == "bundle":
        options["bundle"] = str(places / "bundle")
        begun = time.perf_counter()
        command = [sys.executable, "-m", "jaxengine", "compile", str(model), "--target", "local", *words]
        command += ["--compile-threads", str(threads), "--xla-cache-path", "off", "-o", options["bundle"]]
        subprocess.run(command, check=True, capture_output=True)
        extra = {"build_s": round(time.perf_counter() - begun, 1), **size_of(places / "bundle")}
    elif start == "background":
        options["warmup"] = "background"
    result = first_token(options, environment)
    if start.startswith(("jax", "store")):
        extra = size_of(places / start.split("-")[0])
    return {**result, **extra}


def now() -> str:
    """The clock that all processes of this machine share."""
    return str(time.clock_gettime(time.CLOCK_MONOTONIC))


def run(command: list[str], environment: dict[str, str]) -> dict[str, Any]:
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"a start failed:\n{done.stderr[-3000:]}")
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def size_of(directory: Path) -> dict[str, Any]:
    files = [path for path in directory.rglob("*") if path.is_file()]
    return {"kept_files": len(files), "kept_mb": round(sum(path.stat().st_size for path in files) / 1e6, 1)}


def draw(results: list[dict[str, Any]], path: Path) -> None:
    """One bar for each start: imports, then until ready, then until the first token."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 0.5 * len(results) + 1.5), layout="constrained")
    axes = figure.add_subplot()
    names = [" ".join(str(result.get(key, "")) for key in ("start", "grid", "compile_threads")) for result in results]
    imports = [result.get("python_s", 0) + result["imports_s"] for result in results]
    ready = [result["ready_s"] - done for result, done in zip(results, imports, strict=True)]
    token = [result["first_token_s"] - result["ready_s"] for result in results]
    left = [0.0] * len(results)
    for label, widths in (("imports", imports), ("until ready", ready), ("first token", token)):
        axes.barh(names, widths, left=left, label=label)
        left = [before + width for before, width in zip(left, widths, strict=True)]
    axes.set_xlabel("seconds since the process started")
    axes.invert_yaxis()
    axes.legend()
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
