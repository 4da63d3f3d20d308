"""Milliseconds per call of each sampling variant, beside a sampler that sorts the vocabulary. JSON out: medians by the clock, and
the least of the processor, which on a CPU with its own C++ are given beside those of XLA alone (`pallas_kernels/threshold`).

    python -m benchmarks.sampler --rows 1 8 32 --vocab 151936
    python -m benchmarks.sampler --rows 8 64 256 --vocab 151936 --target v6e-1

Every round runs each program once, so that all of them see the same state of the machine. `random` is timed without filters
and with top_k 50 and top_p 0.9; `full` with masks, penalties, a bias, 20 log probabilities and those filters; `sorting` is the
textbook sampler (argsort, cumulative sum, threefry noise) with them.

With `--target` nothing is run: the figures are the TPU compiler's own estimates, of programs in which the options of all rows
are constants, so that what they do not need is left out. Rows beyond a group (`TPU_ROWS`) are done as often as there are groups,
and a threshold is searched for in 32 rounds, the most that float32 has. The projection to logits is not in it. `sorts` are the
widths of sorts in the program.

Milliseconds on v6e for 151,936 tokens (libtpu 0.0.42.1). Nothing sorts the vocabulary; what sorts are rows, 8 or 16 of them. Two
thresholds are most of it: 32 rounds read all logits 32 times.

    rows                  8        64       256
    greedy              0.02      0.11      0.48
    temperature         0.03      0.19      0.75
    min_p               0.04      0.26      1.03
    top_k               0.32      1.91      7.63
    top_p               0.35      2.15      8.61
    top_k and top_p     0.63      3.82     15.30
    penalties           0.04      0.22      0.89
    20 log probs        0.05      0.27      1.09
    everything          0.72      4.47     17.89

Of 256 rows of 128,256 logits on a v6e, by the compiler's figures and together with the projection, the workspace is 132 MB for
`greedy` and 227 MB for `full`.

Before thresholds were found in C++: milliseconds on two busy cores by rows of a group (`CPU_ROWS`), for 32 slots and 151,936
logits each, some two of them copies of the slots. A third variant, for temperature and filters alone, saved 0 to 13% of large
random batches and cost a start 4 CPU-seconds for each row count. A sort costs 30 to 50 times what a round of the search for a
threshold does. Threefry noise for each token took 98 ms for 32 rows, and a hash keyed by row 2.4.

    rows of a group            1       2       4       8
    one random row           2.8     3.6     4.6      20
    32 of them                15      13      15      25
    32, top_k and top_p       50      43      42      51
    32 greedy rows           4.8     4.7     4.8     5.0

Scatters (`pallas_kernels/scatter_add/tpu.py`): into fewer than a million elements XLA scatters in another way, of 16 rows of
16,032 tokens on v6e with 270 MB in place of 5, 2.3 million cycles in place of 0.6 and five times the compilation.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import re
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from tqdm import tqdm

from jaxengine.bench import machine
from jaxengine.contract.batch import SamplingSpec
from jaxengine.contract.sampling_params import MAX_LOGIT_BIAS
from jaxengine.device.layers.sharding import ONE_DEVICE, share_layers
from jaxengine.device.sampling import SampleInputs, Slots, Variant, sample, settings_row, slots_spec
from jaxengine.device.sampling.rows import Rows
from jaxengine.device.sampling.sampler import TPU_ROWS
from jaxengine.device.sampling.slots import write_history
from jaxengine.startup.native import register_native
from jaxengine.startup.native_libraries import native_directory
from pallas_kernels.native import THRESHOLD, calling
from xla_cache.cycles import CYCLES, UNKNOWN
from xla_cache.target import target

Call = Callable[[], Any]

FILTERED = {"top_k": 50, "top_p": 0.9}
PENALTIES = {"repetition_penalty": 1.1, "frequency_penalty": 0.2}
EVERYTHING = {**FILTERED, **PENALTIES, "bias_ids": (0,), "bias_values": (0.0,), "masked": True, "num_logprobs": 20}
CASES: Mapping[str, tuple[Variant, Mapping[str, Any]]] = {
    "greedy": (Variant.GREEDY, {"temperature": 0.0}),
    "temperature": (Variant.FULL, {}),
    "min_p": (Variant.FULL, {"min_p": 0.05}),
    "top_k": (Variant.FULL, {"top_k": 50}),
    "top_p": (Variant.FULL, {"top_p": 0.9}),
    "top_k and top_p": (Variant.FULL, FILTERED),
    "top_n_sigma": (Variant.FULL, {"top_n_sigma": 1.0}),
    "xtc": (Variant.FULL, {"xtc_probability": 0.5}),
    "penalties": (Variant.FULL, {"temperature": 0.0, **PENALTIES}),
    "log probabilities": (Variant.FULL, {"temperature": 0.0, "num_logprobs": 20}),
    "everything": (Variant.FULL, EVERYTHING),
}
"""What all rows ask for; of temperature 0.8 where nothing else is said."""
ROUNDS = 32
"""Of the search for a threshold: bits of a float32."""
TOP = 20
"""Most likely tokens that are reported."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--vocab", type=int, default=151_936)
    parser.add_argument("--history", type=int, default=2048, help="prompt and output tokens of each row with penalties")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--target", help="a TPU that need not be here, such as v6e-1: the compiler's estimates")
    arguments = parser.parse_args()
    if arguments.target is not None:
        print(json.dumps(estimates(arguments.target, arguments.rows, arguments.vocab), indent=2))
        return
    libraries: dict[str, str | None] = {"xla": None}
    if jax.default_backend() == "cpu":
        libraries["native"] = register_native(native_directory(), symbols=(THRESHOLD,))[0]
    walls: dict[str, dict[str, float]] = {}
    processor: dict[str, dict[str, float]] = {}
    for rows in arguments.rows:
        calls = programs(rows, vocab=arguments.vocab, history=arguments.history, libraries=libraries)
        seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
        for _ in tqdm(range(arguments.rounds), desc=f"{rows} rows", unit="round"):
            for name, call in calls.items():
                begun = time.perf_counter(), time.process_time()
                jax.block_until_ready(call())
                seconds[name].append((time.perf_counter() - begun[0], time.process_time() - begun[1]))
        walls[str(rows)] = {
            name: round(1e3 * statistics.median(wall for wall, _ in taken), 3) for name, taken in seconds.items()
        }
        processor[str(rows)] = {
            name: round(1e3 * min(of_processor for _, of_processor in taken), 3) for name, taken in seconds.items()
        }
    result = {
        "benchmark": "sampler",
        "machine": machine.describe(),
        "device": jax.devices()[0].device_kind,
        "vocab": arguments.vocab,
        "history": arguments.history,
        "rounds": arguments.rounds,
        "median_ms_per_call_by_rows": walls,
        "least_processor_ms_per_call_by_rows": processor,
    }
    print(json.dumps(result, indent=2))


def programs(
    rows: int, *, vocab: int, history: int, libraries: Mapping[str, str | None] | None = None
) -> dict[str, Call]:
    """Each variant, compiled and warm, on logits with the spread of a language model's: with each of the `libraries`."""
    rng = np.random.default_rng(0)
    logits = jnp.asarray(rng.normal(0, 3, (rows, vocab)), jnp.float32)
    libraries = {"xla": None} if libraries is None else libraries
    compiled = {
        name: jax.jit(partial(sample, max_logprobs=TOP), static_argnums=0, static_argnames="platform")
        for name in libraries
    }
    sorting = jax.jit(sort_and_sample)
    slots = state(rows, vocab=vocab, history=history)
    kept = kept_rows(rows)
    calls: dict[str, Call] = {}
    for name, (variant, values) in CASES.items():
        given = dataclasses.replace(slots, settings=jnp.asarray(settings(rows, **values)))
        for backend, library in libraries.items():

            def call(
                variant: Variant = variant, given: Slots = given, backend: str = backend, library: str | None = library
            ) -> Any:
                with calling(library):
                    return compiled[backend](variant, logits, kept, given, platform=jax.default_backend())

            calls[f"{name}, {backend}"] = call
    filtered = dataclasses.replace(slots, settings=jnp.asarray(settings(rows, **FILTERED)))
    calls["sorting, top_k and top_p"] = lambda: sorting(logits, kept, filtered)
    for call in calls.values():
        jax.block_until_ready(call())
    return calls


def settings(rows: int, **values: Any) -> np.ndarray[Any, Any]:
    """The settings of the slots of so many rows, and of the sink."""
    specs = [SamplingSpec(**{"temperature": 0.8, "seed": row, **values}) for row in range(rows + 1)]
    return np.stack([settings_row(spec) for spec in specs])


def kept_rows(rows: int) -> SampleInputs:
    numbers = jnp.arange(rows, dtype=jnp.int32)
    return SampleInputs(
        slots=numbers + 1,
        positions=numbers + 100,
        targets=jnp.full(rows, -1),
        writes=numbers + 1,
        count=jnp.int32(rows),
    )


def estimates(name: str, row_counts: list[int], vocab: int) -> dict[str, Any]:
    """Thousands of cycles and milliseconds of each case on a TPU."""
    chosen = target(name)
    assert chosen.chip is not None
    layout = share_layers(chosen.devices()[:1])
    whole = NamedSharding(layout.mesh, PartitionSpec())
    found: dict[str, dict[str, Any]] = {}
    known: dict[tuple[str, int], tuple[int, list[int]]] = {}
    for rows in row_counts:
        for case, (variant, values) in tqdm(CASES.items(), desc=f"{rows} rows"):
            group = math.gcd(rows, TPU_ROWS[variant])
            if (case, group) not in known:
                known[case, group] = estimate(variant, group, vocab, values, layout, whole)
            cycles, sorts = known[case, group]
            cycles *= rows // group
            found.setdefault(case, {})[str(rows)] = {
                "kilocycles": round(cycles / 1e3, 1),
                "ms": round(1e3 * cycles / chosen.chip.clock_hz, 3),
                "sorts": sorts,
            }
    return {"kind": "static estimate", "machine": machine.describe(), "target": name, "vocab": vocab, "cases": found}


def estimate(
    variant: Variant, rows: int, vocab: int, values: Mapping[str, Any], layout: Any, whole: Any
) -> tuple[int, list[int]]:
    """Cycles of a group of rows, and the widths of sorts."""
    kept, constants = kept_rows(rows), settings(rows, **values)

    def run(logits: jax.Array, slots: Slots) -> Any:
        return sample(variant, logits, kept, dataclasses.replace(slots, settings=constants), max_logprobs=TOP)

    given = (
        jax.ShapeDtypeStruct((rows, vocab), jnp.float32, sharding=whole),
        slots_spec(rows + 1, vocab, platform="tpu", layout=layout),
    )
    with jax.set_mesh(layout.mesh):
        lowered = jax.jit(run, donate_argnums=1).trace(*given).lower(lowering_platforms=("tpu",))
    text = lowered.compile().as_text() or ""
    bodies, total, times = set(re.findall(r"body=%?([\w.-]+)", text)), 0, 1
    for line in text.splitlines():
        if opened := re.match(r"^(?:ENTRY )?%?([\w.-]+) .*\{$", line):
            times = ROUNDS if opened[1] in bodies else 1
        total += times * sum(count for count in map(int, CYCLES.findall(line)) if count < UNKNOWN)
    widths = [max(map(int, shape.split(","))) for shape in re.findall(r"\w+\[([\d,]+)\][^=]* sort\(", text)]
    return total, sorted(set(widths), reverse=True)


def state(rows: int, *, vocab: int, history: int) -> Slots:
    """Slots with a history, a bias on every token that may have one, and a mask that allows all."""
    slots = jax.tree.map(
        lambda struct: jnp.zeros(struct.shape, struct.dtype),
        slots_spec(rows + 1, vocab, platform="cpu", layout=ONE_DEVICE),
    )
    tokens = np.random.default_rng(1).integers(0, vocab, history)
    for slot in range(1, rows + 1):
        slots = write_history(
            slots, jnp.asarray([slot, 0, history // 2, *tokens], jnp.int32), platform="cpu", layout=ONE_DEVICE
        )
    bias = jnp.stack([jnp.arange(MAX_LOGIT_BIAS), jnp.full(MAX_LOGIT_BIAS, np.float32(1).view(np.int32))])
    return dataclasses.replace(
        slots, bias=jnp.broadcast_to(bias, slots.bias.shape), allowed=jnp.full_like(slots.allowed, 0xFFFFFFFF)
    )


def sort_and_sample(logits: jax.Array, kept: SampleInputs, slots: Slots) -> jax.Array:
    """The textbook sampler: sort, cut, draw among the sorted, map back."""
    rows = Rows.of(kept, slots)
    temperature, top_k, top_p = (rows.options[name][:, None] for name in ("temperature", "top_k", "top_p"))
    order = jnp.argsort(-logits, axis=-1)
    ordered = jnp.take_along_axis(logits / temperature, order, axis=-1)
    place = jnp.arange(logits.shape[1])[None]
    ordered = jnp.where(place < top_k, ordered, -jnp.inf)
    chances = jax.nn.softmax(ordered, axis=-1)
    above = jnp.cumsum(chances, axis=-1) - chances
    ordered = jnp.where(above < top_p, ordered, -jnp.inf)

    def draw(seed: jax.Array, position: jax.Array, row: jax.Array) -> jax.Array:
        key = jax.random.fold_in(jax.random.wrap_key_data(seed, impl="threefry2x32"), position)
        return jax.random.categorical(key, row)

    drawn = jax.vmap(draw)(rows.seeds, rows.positions, ordered)
    return jnp.take_along_axis(order, drawn[:, None], axis=-1)[:, 0]


if __name__ == "__main__":
    main()
