"""Output tokens per second, offline, for N equal requests at once. JSON out.

    python benchmarks/throughput.py --config config.json --dtype bfloat16 --requests 1 8 32

`--beside CMD` runs another engine in turn: in the middle repetition CMD is run after each of our runs, with `{requests}`,
`{prompt_len}` and `{output_len}` filled in, and the JSON lines it prints are kept; our runs before and after it show whether
the machine changed.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import time
from typing import Any

import workload
from tqdm import tqdm

from jaxengine.bench import machine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    workload.add_model_options(parser)
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--beside", help="command of another engine, run in turn")
    arguments = parser.parse_args()
    rng = random.Random(0)
    started = time.perf_counter()
    with workload.open_llm(arguments, max_num_seqs=max(arguments.requests)) as llm:
        ready_s = time.perf_counter() - started
        rounds = [(repetition, count) for repetition in range(arguments.repeat) for count in arguments.requests]
        ours: dict[int, list[float]] = {count: [] for count in arguments.requests}
        theirs: dict[int, list[Any]] = {count: [] for count in arguments.requests}
        for repetition, count in tqdm(rounds, desc="throughput", unit="run"):
            batch = workload.prompts(rng, count=count, length=arguments.prompt_len, vocab_size=llm.vocab_size)
            begun = time.perf_counter()
            outputs = llm.generate(batch, workload.greedy(arguments.output_len), use_tqdm=False)
            elapsed = time.perf_counter() - begun
            tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
            ours[count].append(tokens / elapsed)
            if arguments.beside and repetition == arguments.repeat // 2:
                theirs[count] += beside(arguments, count)
        result = {
            "benchmark": "throughput",
            "machine": machine.describe(),
            "model": str(arguments.config or arguments.model or "embedded"),
            "dtype": arguments.dtype,
            "prompt_len": arguments.prompt_len,
            "output_len": arguments.output_len,
            "ready_s": round(ready_s, 2),
            "compile_events_after_ready": llm.get_metrics()["num_compilations"],
            "output_tokens_per_s": {
                count: {"median": round(statistics.median(rates), 1), "all": [round(rate, 1) for rate in rates]}
                for count, rates in ours.items()
            },
            "beside": theirs if arguments.beside else None,
        }
    print(json.dumps(result, indent=2))


def beside(arguments: argparse.Namespace, count: int) -> list[Any]:
    """Run the other engine once and keep the JSON lines it prints."""
    command = arguments.beside.format(requests=count, prompt_len=arguments.prompt_len, output_len=arguments.output_len)
    printed = subprocess.run(command, shell=True, check=True, capture_output=True, text=True).stdout
    return [json.loads(line) for line in printed.splitlines() if line.startswith("{")]


if __name__ == "__main__":
    main()
