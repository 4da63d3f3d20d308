"""Milliseconds per call of each sampling variant, beside a sampler that sorts the vocabulary. JSON out.

    python benchmarks/sampler.py --rows 1 8 32 --vocab 151936

Every round runs each program once, so that all of them see the same state of the machine. `random` is timed without filters
and with top_k 50 and top_p 0.9; `full` with penalties, a bias, 20 log probabilities and those filters; `sorting` is the textbook
sampler (argsort, cumulative sum, threefry noise) with them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import machine
import numpy as np
from tqdm import tqdm

from jaxengine.sampling import SamplingInputs, Variant, neutral, sample

Call = Callable[[], Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--vocab", type=int, default=151_936)
    parser.add_argument("--history", type=int, default=2048, help="prompt and output tokens of each row with penalties")
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    times: dict[str, dict[str, float]] = {}
    for rows in arguments.rows:
        calls = programs(rows, vocab=arguments.vocab, history=arguments.history)
        seconds: dict[str, list[float]] = {name: [] for name in calls}
        for _ in tqdm(range(arguments.rounds), desc=f"{rows} rows", unit="round"):
            for name, call in calls.items():
                begun = time.perf_counter()
                jax.block_until_ready(call())
                seconds[name].append(time.perf_counter() - begun)
        times[str(rows)] = {name: round(1e3 * statistics.median(taken), 3) for name, taken in seconds.items()}
    result = {
        "benchmark": "sampler",
        "machine": machine.describe(),
        "device": jax.devices()[0].device_kind,
        "vocab": arguments.vocab,
        "history": arguments.history,
        "rounds": arguments.rounds,
        "median_ms_per_call_by_rows": times,
    }
    print(json.dumps(result, indent=2))


def programs(rows: int, *, vocab: int, history: int) -> dict[str, Call]:
    """Each variant, compiled and warm, on logits with the spread of a language model's."""
    rng = np.random.default_rng(0)
    logits = jnp.asarray(rng.normal(0, 3, (rows, vocab)), jnp.float32)
    compiled = jax.jit(sample, static_argnums=0, static_argnames="max_logprobs")
    sorting = jax.jit(sort_and_sample)

    def inputs(variant: Variant, **values: Any) -> SamplingInputs:
        arrays = neutral(variant, rows, vocab, history)
        if variant is not Variant.GREEDY:
            arrays.temperature[:] = 0.8
            arrays.seeds[:, 1] = np.arange(rows)
        for name, value in values.items():
            getattr(arrays, name)[:] = value
        return jax.device_put(arrays)

    filtered = {"top_k": 50, "top_p": 0.9}
    seen = rng.integers(0, vocab, (rows, history))
    penalties = {"repetition": 1.1, "frequency": 0.2, "history": seen, "num_prompt": history // 2}
    bias = {"bias_ids": np.arange(1024), "bias_values": 1.0}
    cases = {
        "greedy": (Variant.GREEDY, {}),
        "random": (Variant.RANDOM, {}),
        "random, top_k": (Variant.RANDOM, {"top_k": 50}),
        "random, top_p": (Variant.RANDOM, {"top_p": 0.9}),
        "random, top_k and top_p": (Variant.RANDOM, filtered),
        "full, neutral": (Variant.FULL, {}),
        "full, everything": (Variant.FULL, {**filtered, **penalties, **bias}),
    }
    calls: dict[str, Call] = {}
    for name, (variant, values) in cases.items():
        arrays = inputs(variant, **values)
        calls[name] = lambda variant=variant, arrays=arrays: compiled(variant, logits, arrays, max_logprobs=20)
    arrays = inputs(Variant.RANDOM, **filtered)
    calls["sorting, top_k and top_p"] = lambda: sorting(logits, arrays)
    for call in calls.values():
        jax.block_until_ready(call())
    return calls


def sort_and_sample(logits: jax.Array, inputs: SamplingInputs) -> jax.Array:
    """The textbook sampler: sort, cut, draw among the sorted, map back."""
    order = jnp.argsort(-logits, axis=-1)
    ordered = jnp.take_along_axis(logits / inputs.temperature[:, None], order, axis=-1)
    place = jnp.arange(logits.shape[1])[None]
    ordered = jnp.where(place < inputs.top_k[:, None], ordered, -jnp.inf)
    chances = jax.nn.softmax(ordered, axis=-1)
    above = jnp.cumsum(chances, axis=-1) - chances
    ordered = jnp.where(above < inputs.top_p[:, None], ordered, -jnp.inf)

    def draw(seed: jax.Array, position: jax.Array, row: jax.Array) -> jax.Array:
        key = jax.random.fold_in(jax.random.wrap_key_data(seed, impl="threefry2x32"), position)
        return jax.random.categorical(key, row)

    drawn = jax.vmap(draw)(inputs.seeds, inputs.positions, ordered)
    return jnp.take_along_axis(order, drawn[:, None], axis=-1)[:, 0]


if __name__ == "__main__":
    main()
