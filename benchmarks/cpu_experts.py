"""One layer's experts on this machine's CPU: XLA's products and the engine's own, in turn, beside what memory gives. JSON out.

A layer is gate, up, an activation and down, sorted rows in and out; routing is random, another in every round, so that no cache
holds the matrices. `floor_ms` is what reading the matrices of the chosen experts takes at the bandwidth that was measured in the
same round, by as many threads as there are cores. `cpu_ms` is the time of all threads together, which other programs disturb
less. Medians of all rounds but the first.

python -m benchmarks.cpu_experts --model Qwen3-30B-A3B --kinds bfloat16 int8 int4 --tokens 1 8 32 512
python -m benchmarks.cpu_experts --model gpt-oss-20b --kinds mxfp4 --tokens 1 8 32 512 --rounds 3

Milliseconds for the experts of a layer of Qwen3-30B-A3B, XLA's and the engine's own (`pallas_kernels/grouped_matmul`, `cpu.py`
and `native.py`), and twice what reading the chosen ones takes both cores (medians of three rounds; processor time of all
threads), on two cores of an EPYC with AVX-512 BF16:

    tokens                   1             8            32           512
    bfloat16          16   6.8       99   41      208   90      578  297
      floor, 2 cores       4.7            29            73
    int8              14   3.6       90   25      186   51      569  192
      floor, 2 cores       2.3            16            32

The same of fewer bits (`pallas_kernels/grouped_scaled_matmul`), on the same machine, which other programs kept busy (medians of
three rounds, MXFP4 in one):

    tokens                          1              8               32
    gpt-oss-20b, MXFP4      374   6.4     2,085   35       2,964   68
    Qwen3-30B-A3B, 4 bits   119   3.1       783   14       1,780   36

Reading those in MXFP4 took all threads 5, 41 and 31 ms in the same rounds, which other programs disturbed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from benchmarks.cpu_matmul import SCALED
from benchmarks.memory import read_bandwidth
from jaxengine.bench import machine
from jaxengine.startup.native import register_native
from jaxengine.startup.native_libraries import native_directory
from pallas_kernels import grouped_matmul, grouped_scaled_matmul
from pallas_kernels.native import calling

MODELS = {"gpt-oss-20b": (32, 4, 2880, 2880), "Qwen3-30B-A3B": (128, 8, 2048, 768)}
"""Experts, how many a token chooses, width, and channels inside."""

KINDS = ("bfloat16", "float32", "int8", *SCALED)

Matrices = list[jax.Array]
"""Those of all experts, with scales and zeros where they have some."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=list(MODELS), required=True)
    parser.add_argument("--kinds", nargs="+", default=["bfloat16", "int8", "int4"], choices=KINDS)
    parser.add_argument("--tokens", nargs="+", type=int, default=[1, 8, 32, 512])
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    name, _ = register_native(native_directory())
    results = []
    for kind in arguments.kinds:
        layer = made(kind, *MODELS[arguments.model])
        cases = tqdm(arguments.tokens, desc=kind)
        results.extend(measure(name, kind, layer, tokens, arguments) for tokens in cases)
    print(json.dumps({"machine": machine.describe(), **vars(arguments), "results": results}, indent=1))


def made(kind: str, count: int, _: int, width: int, inner: int) -> list[Matrices]:
    """Gate, up and down."""
    generator = np.random.default_rng(0)

    def matrices(inputs: int, outputs: int) -> Matrices:
        lines = inputs // 2 if kind in ("int4", "mxfp4") else inputs
        one = np.asarray(generator.integers(0, 256, size=(lines, outputs)), np.uint8)
        every = jnp.asarray(np.stack([np.roll(one, expert) for expert in range(count)]))
        if kind in ("bfloat16", "float32"):
            return [jnp.where(every > 127, 0.01, -0.01).astype(kind)]
        if kind == "int8":
            return [jax.lax.bitcast_convert_type(every, jnp.int8), jnp.full((count, outputs), 1e-3, jnp.float32)]
        groups = inputs // (SCALED[kind] or inputs)
        scales = jnp.full((count, groups, outputs), 0.01, jnp.bfloat16 if groups > 1 else jnp.float32)
        if kind == "int4":
            return [every, scales, jnp.ones_like(scales)]
        if kind == "mxfp4":
            return [every, scales]
        return [jax.lax.bitcast_convert_type(every & 0xBF, jnp.float8_e4m3fn), scales]

    return [matrices(width, inner), matrices(width, inner), matrices(inner, width)]


def measure(name: str, kind: str, layer: list[Matrices], tokens: int, arguments: argparse.Namespace) -> dict[str, Any]:
    generator = np.random.default_rng(tokens)
    count, chosen, width, inner = MODELS[arguments.model]
    x = jnp.asarray(generator.normal(size=(tokens * chosen, width)), jnp.bfloat16)
    sizes = jnp.zeros(count, jnp.int32)
    calls = {form: compiled(kind, named, x, sizes, layer) for form, named in (("xla", None), ("native", name))}
    taken: dict[str, list[float]] = defaultdict(list)
    for _ in range(1 + arguments.rounds):
        pairs = np.concatenate([generator.permutation(count)[:chosen] for _ in range(tokens)])
        sizes = jnp.asarray(np.bincount(pairs, minlength=count), jnp.int32)
        nbytes = sum(array.nbytes for matrices in layer for array in matrices) * int((sizes > 0).sum()) / count
        taken["bandwidth"].append(read_bandwidth())
        taken["floor"].append(nbytes / taken["bandwidth"][-1])
        for form, call in calls.items():
            begun, cpu_begun = time.perf_counter(), time.process_time()
            call(x, sizes, layer).block_until_ready()
            taken[form].append(time.perf_counter() - begun)
            taken[f"{form} cpu"].append(time.process_time() - cpu_begun)
    median = {what: statistics.median(times[1:]) for what, times in taken.items()}
    return {
        "kind": kind,
        "tokens": tokens,
        "read_gb_s": round(median["bandwidth"] / 1e9, 1),
        "floor_ms": round(median["floor"] * 1e3, 2),
        "ms": {form: round(median[form] * 1e3, 2) for form in calls},
        "cpu_ms": {form: round(median[f"{form} cpu"] * 1e3, 2) for form in calls},
        "gflop_per_cpu_s": {
            form: round(6 * tokens * chosen * width * inner / median[f"{form} cpu"] / 1e9, 1) for form in calls
        },
    }


def compiled(kind: str, name: str | None, *arguments: Any) -> Callable[..., jax.Array]:
    """A layer by the library of this name, or by XLA."""

    def product(x: jax.Array, sizes: jax.Array, weights: jax.Array, *scales: jax.Array) -> jax.Array:
        options: dict[str, Any] = {"dtype": jnp.bfloat16, "platform": "cpu"}
        if kind not in SCALED:
            return grouped_matmul(x, weights, sizes, scales=scales[0] if scales else None, **options)
        options |= {"group": SCALED[kind] or x.shape[1], "compute": jnp.bfloat16}
        options |= {"pairs": "float4_e2m1fn"} if kind == "mxfp4" else {}
        return grouped_scaled_matmul(x, weights, sizes, *scales, **options)

    def layer(x: jax.Array, sizes: jax.Array, matrices: list[Matrices]) -> jax.Array:
        gate, up, down = matrices
        with calling(name):
            inside = jax.nn.silu(product(x, sizes, *gate)) * product(x, sizes, *up)
            return product(inside, sizes, *down)

    found: Callable[..., jax.Array] = jax.jit(layer).lower(*arguments).compile()
    return found


if __name__ == "__main__":
    main()
