"""Seconds from a request to its first token and from token to token, for a batch of N equal requests. JSON out.

python benchmarks/latency.py --config config.json --dtype bfloat16 --batch 1 8
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time

import machine
import workload
from tqdm import tqdm


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    workload.add_model_options(parser)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    arguments = parser.parse_args()
    rng = random.Random(0)
    with workload.open_llm(arguments, max_num_seqs=max(arguments.batch)) as llm:
        results = {}
        for count in arguments.batch:
            first, rest = [], []
            for _ in tqdm(range(arguments.repeat), desc=f"latency, {count} requests", unit="run"):
                batch = workload.prompts(rng, count=count, length=arguments.prompt_len, vocab_size=llm.vocab_size)
                first.append(timed(llm, batch, 1))
                batch = workload.prompts(rng, count=count, length=arguments.prompt_len, vocab_size=llm.vocab_size)
                whole = timed(llm, batch, arguments.output_len)
                rest.append((whole - first[-1]) / (arguments.output_len - 1))
            results[count] = {
                "first_token_s": round(statistics.median(first), 4),
                "per_output_token_s": round(statistics.median(rest), 5),
            }
    print(
        json.dumps(
            {
                "benchmark": "latency",
                "machine": machine.describe(),
                "model": str(arguments.config or arguments.model or "embedded"),
                "dtype": arguments.dtype,
                "prompt_len": arguments.prompt_len,
                "output_len": arguments.output_len,
                "repeat": arguments.repeat,
                "median": results,
            },
            indent=2,
        )
    )


def timed(llm: workload.LLM, batch: list[dict[str, list[int]]], output_len: int) -> float:
    """Seconds to generate `output_len` tokens for every prompt of the batch."""
    begun = time.perf_counter()
    llm.generate(batch, workload.greedy(output_len), use_tqdm=False)
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
