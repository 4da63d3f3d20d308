"""What prompt lookup gains on text that repeats and costs where nothing does. JSON out.

Two engines, one with `--speculative-config` and one without, take the same requests in turn. `repeats`: greedy among eight
tokens, which soon come again in one order. `new`: random prompts at temperature 1, where no draft is right but by chance. The
tokens of both engines must be equal.

    python -m benchmarks.speculation --requests 1 8 --repeat 5
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from typing import Any

from tqdm import tqdm

from benchmarks import workload
from jaxengine import LLM, SamplingParams
from jaxengine.bench import machine

CONFIG = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4, "prompt_lookup_min": 2}
FEW = 8
"""Tokens that are allowed where text is to repeat."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    workload.add_model_options(parser)
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--speculative-config", type=json.loads, default=CONFIG)
    arguments = parser.parse_args()
    most = max(arguments.requests)
    with workload.open_llm(arguments, max_num_seqs=most) as plain:
        arguments.engine_options = {**arguments.engine_options, "speculative_config": arguments.speculative_config}
        with workload.open_llm(arguments, max_num_seqs=most) as drafting:
            results = {
                kind: {str(count): measure(plain, drafting, kind, count, arguments) for count in arguments.requests}
                for kind in ("repeats", "new")
            }
    asked = {name: str(value) if name == "config" else value for name, value in vars(arguments).items()}
    print(
        json.dumps({"benchmark": "speculation", "machine": machine.describe(), **asked, "results": results}, indent=2)
    )


def measure(plain: LLM, drafting: LLM, kind: str, count: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Medians over `--repeat` rounds, the engines taking turns at being first."""
    rng = random.Random(count)
    seconds: dict[str, list[float]] = {"plain": [], "drafting": []}
    steps: dict[str, int] = {}
    for number in tqdm(range(1 + arguments.repeat), desc=f"{kind}, {count} requests"):
        batch, params = requests(kind, count, rng, arguments, plain.vocab_size)
        tokens = {}
        order = [("plain", plain), ("drafting", drafting)]
        for name, llm in order if number % 2 else reversed(order):
            before, begun = llm.get_metrics()["num_steps"], time.perf_counter()
            outputs = llm.generate(batch, params, use_tqdm=False)
            if number:  # the first round warms up
                seconds[name].append(time.perf_counter() - begun)
            tokens[name] = [output.outputs[0].token_ids for output in outputs]
            steps[name] = int(llm.get_metrics()["num_steps"] - before)
        assert tokens["plain"] == tokens["drafting"], "speculation changed the output"
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    return {
        "steps_per_token": {name: round(value / arguments.output_len, 3) for name, value in steps.items()},
        "seconds": {name: round(value, 3) for name, value in medians.items()},
        "speedup": round(medians["plain"] / medians["drafting"], 3),
    }


def requests(
    kind: str, count: int, rng: random.Random, arguments: argparse.Namespace, vocab_size: int
) -> tuple[list[dict[str, list[int]]], list[SamplingParams]]:
    """Prompts of a kind, and how each is sampled."""
    common: dict[str, Any] = {"max_tokens": arguments.output_len, "ignore_eos": True, "detokenize": False}
    batch = workload.prompts(rng, count=count, length=arguments.prompt_len, vocab_size=vocab_size)
    if kind == "new":
        return batch, [SamplingParams(temperature=1.0, seed=rng.getrandbits(30), **common) for _ in batch]
    few = [rng.sample(range(10, vocab_size), FEW) for _ in batch]
    return batch, [SamplingParams(temperature=0.0, allowed_token_ids=tokens, **common) for tokens in few]


if __name__ == "__main__":
    main()
