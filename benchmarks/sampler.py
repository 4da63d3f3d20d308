"""Milliseconds per call of each sampling variant, beside a sampler that sorts the vocabulary. JSON out.

    python benchmarks/sampler.py --rows 1 8 32 --vocab 151936

Every round runs each program once, so that all of them see the same state of the machine. `random` is timed without filters
and with top_k 50 and top_p 0.9; `full` with masks, penalties, a bias, 20 log probabilities and those filters; `sorting` is the
textbook sampler (argsort, cumulative sum, threefry noise) with them.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from jaxengine.bench import machine
from jaxengine.sampling import Kept, Needs, Slots, Variant, sample, settings_row, slots_spec
from jaxengine.sampling.slots import Settings, write_history
from jaxengine.sampling_params import MAX_LOGIT_BIAS

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
    slots = state(rows, vocab=vocab, history=history)
    numbers = jnp.arange(rows, dtype=jnp.int32)
    kept = Kept(
        slots=numbers + 1,
        positions=numbers + 100,
        targets=jnp.full(rows, -1),
        writes=numbers + 1,
        count=jnp.int32(rows),
    )

    def settings(**values: Any) -> jax.Array:
        each = [settings_row(**{"temperature": 0.8, "seed": row, **values}) for row in range(rows + 1)]
        return jnp.asarray(np.stack(each))

    filtered = {"top_k": 50, "top_p": 0.9}
    everything = Needs.BIAS | Needs.MASK | Needs.PENALTIES | Needs.LOGPROBS
    cases = {
        "greedy": (Variant.GREEDY, {"temperature": 0.0}),
        "random": (Variant.FULL, {}),
        "random, top_k": (Variant.FULL, {"top_k": 50}),
        "random, top_p": (Variant.FULL, {"top_p": 0.9}),
        "random, top_k and top_p": (Variant.FULL, filtered),
        "log probabilities": (Variant.FULL, {"needs": Needs.LOGPROBS}),
        "everything": (Variant.FULL, {**filtered, "needs": everything, "repetition": 1.1, "frequency": 0.2}),
    }
    calls: dict[str, Call] = {}
    for name, (variant, values) in cases.items():
        given = dataclasses.replace(slots, settings=settings(**values))
        calls[name] = lambda variant=variant, given=given: compiled(variant, logits, kept, given, max_logprobs=20)
    filters = settings(**filtered)[1:]
    calls["sorting, top_k and top_p"] = lambda: sorting(logits, filters, kept.positions)
    for call in calls.values():
        jax.block_until_ready(call())
    return calls


def state(rows: int, *, vocab: int, history: int) -> Slots:
    """Slots with a history, a bias on every token that may have one, and a mask that allows all."""
    slots = jax.tree.map(
        lambda struct: jnp.zeros(struct.shape, struct.dtype), slots_spec(rows + 1, vocab, platform="cpu", mesh=None)
    )
    tokens = np.random.default_rng(1).integers(0, vocab, history)
    for slot in range(1, rows + 1):
        slots = write_history(slots, jnp.asarray([slot, history // 2, *tokens], jnp.int32), platform="cpu", mesh=None)
    bias = jnp.stack([jnp.arange(MAX_LOGIT_BIAS), jnp.full(MAX_LOGIT_BIAS, np.float32(1).view(np.int32))])
    return dataclasses.replace(
        slots, bias=jnp.broadcast_to(bias, slots.bias.shape), allowed=jnp.full_like(slots.allowed, 0xFFFFFFFF)
    )


def sort_and_sample(logits: jax.Array, rows: jax.Array, positions: jax.Array) -> jax.Array:
    """The textbook sampler: sort, cut, draw among the sorted, map back."""
    settings = Settings.of(rows)
    order = jnp.argsort(-logits, axis=-1)
    ordered = jnp.take_along_axis(logits / settings.temperature[:, None], order, axis=-1)
    place = jnp.arange(logits.shape[1])[None]
    ordered = jnp.where(place < settings.top_k[:, None], ordered, -jnp.inf)
    chances = jax.nn.softmax(ordered, axis=-1)
    above = jnp.cumsum(chances, axis=-1) - chances
    ordered = jnp.where(above < settings.top_p[:, None], ordered, -jnp.inf)

    def draw(seed: jax.Array, position: jax.Array, row: jax.Array) -> jax.Array:
        key = jax.random.fold_in(jax.random.wrap_key_data(seed, impl="threefry2x32"), position)
        return jax.random.categorical(key, row)

    drawn = jax.vmap(draw)(settings.seeds, positions, ordered)
    return jnp.take_along_axis(order, drawn[:, None], axis=-1)[:, 0]


if __name__ == "__main__":
    main()
