"""Matrix products on this machine's CPU: XLA's and the engine's own, in turn, beside what memory gives. JSON out.

The matrices are those of a layer of Qwen3-0.6B, enough copies of each that no cache holds them. `floor_ms` is what reading the
matrix takes at the bandwidth that was measured in the same round, by as many threads as there are cores. `cpu_ms` is the
time of all threads together, which other programs disturb less. Medians of all rounds.

python -m benchmarks.cpu_matmul --dtypes bfloat16 int8 --rows 1 2 8 32 128 512 2048
python -m benchmarks.cpu_matmul --dtypes bfloat16 int8 int4 fp8 fp8-blocks mxfp4 --rows 1 8 32 512
python -m benchmarks.cpu_matmul --dtypes int4 q4_0 --rows 1 2 8 --before ../before/pallas_kernels/native
python -m benchmarks.cpu_matmul --dtypes int4-packed --rows 1 2 4 --before ../before/pallas_kernels/native
python -m benchmarks.cpu_matmul --dtypes int4-packed --rows 1 8 --matrices head --before ../before/pallas_kernels/native
python -m benchmarks.cpu_matmul --dtypes bfloat16 coded --rows 32 64 128 512 --before ../before/pallas_kernels/native

Processor milliseconds of all threads for a matrix of `[3072, 1024]`, XLA's and the engine's own (`cpu_ms`, jax 0.10.2;
`pallas_kernels/matmul/native.py`), on two cores of an EPYC with AVX-512 BF16 on which nothing else ran; reading the matrix in
bfloat16 takes both 0.4. That was before few rows were read in order and 8 rows of int8 scaled four sums at once, which took a
tenth and a twentieth off:

    rows              1           2           8          32         128         512        2,048
    bfloat16  0.85 0.53   0.86 0.48    1.1 0.60    1.9  1.4    5.0  4.5     17   18     62   67
    int8      0.55 0.24   0.54 0.25   0.82 0.30    1.9 0.90    5.9  3.0     21   11     85   56
    float32    1.5 0.82    1.5 0.89    2.0  1.1    4.0  3.0    9.4 10.7     31   38    120  152

A Xeon with AVX-512 VNNI and without BF16, kept busy by other programs, took 2.9 and 1.1 for one row in bfloat16, 18.8 and 13.1
for 128, before the first rows asked for what follows.

Milliseconds of one thread for a matrix of `[3072, 1024]` in fewer bits (`pallas_kernels/scaled_matmul/native.py`) on an EPYC with
AVX-512 BF16 that other programs kept busy (the least of seven; groups of 128 unless said; with all threads reading bfloat16 takes
longer, these do not):

    rows                  1      8     32    512
    bfloat16           0.26   0.31    1.1   15.9
    int8 (`matmul`)    0.19   0.26   0.76   10.7
    4 bits             0.19   0.38    1.1   15.7
    4 bits, groups 32  0.35   0.54    1.3   16.4
    float8, channels   0.24   0.43    1.1   15.9
    float8, groups     0.31

Since then integers and float4 are multiplied in fixed point; `results/cpu_fixed_point.json` has what that takes with AVX2,
`results/cpu_avx512.json` with AVX-512.

On that Zen 3 tiles of six rows in place of three, whose operands stay in registers, before and after (`results/cpu_prompts.json`;
torch took 14.1 for 128 rows of float32):

    rows               8          32         128         512
    bfloat16   1.55 1.55   6.2   4.7   22.0 15.6   77.6 55.0
    float32    2.06 2.02   6.8   5.4   19.1 12.9   72.1 52.1
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from benchmarks.memory import read_bandwidth
from jaxengine.bench import machine
from jaxengine.startup.native import register_native
from jaxengine.startup.native_libraries import native_directory
from pallas_kernels import matmul, scaled_matmul
from pallas_kernels.coded_matmul import HEAD, coded_matmul
from pallas_kernels.coded_matmul.coding import SOURCE, Coder
from pallas_kernels.native import FOLDER, calling
from pallas_kernels.scaled_matmul.packed import packed
from xla_cache.library import Recipe, obtain_library

MATRICES = {
    "q": (2048, 1024),
    "k or v": (1024, 1024),
    "o": (1024, 2048),
    "gate or up": (3072, 1024),
    "down": (1024, 3072),
    "head": (151_936, 1024),
}
"""Out and in, by name."""
OF_LAYER = [name for name in MATRICES if name != "head"]

SCALED = {
    "int4": 128,
    "int4-packed": 128,
    "fp8": None,
    "fp8-blocks": 128,
    "mxfp4": 32,
    "q4_0": 32,
    "q4_k": 32,
    "q8_0": 32,
    "q6_k": 16,
}
"""Matrices that are not multiplied as they are kept, and how many inputs have a scale in common; None: all.

int4 and q4_k have zeros; `int4-packed` lies as models have it that serve. The last four are what GGUF's types of these names are
kept as.
"""
PAIRED = ("int4", "int4-packed", "mxfp4", "q4_0", "q4_k")
WITH_ZEROS = ("int4", "int4-packed", "q4_k")

CODED = "coded"
"""bfloat16 in 12 bits a number."""

FEW_ROWS = 32
"""Up to so many, all copies are read in a round; with more, two."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 2, 8, 32, 128, 512, 2048])
    parser.add_argument(
        "--dtypes", nargs="+", default=["bfloat16", "int8"], choices=["bfloat16", "float32", "int8", CODED, *SCALED]
    )
    parser.add_argument("--matrices", nargs="+", default=OF_LAYER, choices=list(MATRICES))
    parser.add_argument("--bytes", type=int, default=128 << 20, help="of all copies of a matrix")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--before", type=Path, help="native/ of another commit, measured in place of XLA's products")
    parser.add_argument("--output", type=Path, help="a file for the JSON")
    arguments = parser.parse_args()
    before, output = arguments.before, arguments.output
    if CODED in arguments.dtypes and before is None:
        parser.error(
            f"XLA has no product for {CODED}: name native/ of another commit by --before, or leave {CODED} out"
        )
    other = {"xla": None} if before is None else {"before": register_native(native_directory(), before)[0]}
    forms = other | {"native": register_native(native_directory())[0]}
    results = [
        measure(forms, dtype, matrix, arguments)
        for dtype in arguments.dtypes
        for matrix in tqdm(arguments.matrices, desc=dtype)
    ]
    rows = [row for found in results for row in found]
    options = {name: value for name, value in vars(arguments).items() if name not in ("before", "output")}
    found = {"machine": machine.describe(), **options, "results": rows}
    text = json.dumps(found, indent=1)
    print(text) if output is None else output.write_text(text + "\n")


def measure(
    forms: Mapping[str, str | None], dtype: str, matrix: str, arguments: argparse.Namespace
) -> list[dict[str, Any]]:
    generator, shape = np.random.default_rng(0), MATRICES[matrix]
    weight, *scales = made(dtype, generator, shape)
    copies = max(2, arguments.bytes // weight.nbytes)
    kept = [jnp.array(weight) for _ in range(copies)]
    found = []
    for rows in arguments.rows:
        x = jnp.asarray(generator.normal(size=(rows, shape[1])), jnp.float32)
        read = kept if rows <= FEW_ROWS else kept[:2]
        calls = {form: compiled(dtype, named, x, kept[0], *scales) for form, named in forms.items()}
        times: dict[str, list[float]] = defaultdict(list)
        cpu_times: dict[str, list[float]] = defaultdict(list)
        for _ in range(1 + arguments.rounds):
            times["bandwidth"].append(read_bandwidth())
            for form, call in calls.items():
                begun, cpu_begun = time.perf_counter(), time.process_time()
                for weight in read:
                    call(x, weight, *scales).block_until_ready()
                times[form].append((time.perf_counter() - begun) / len(read))
                cpu_times[form].append((time.process_time() - cpu_begun) / len(read))
        median, cpu_median = (
            {form: statistics.median(taken[1:]) for form, taken in kind.items()} for kind in (times, cpu_times)
        )
        nbytes, operations = sum(array.nbytes for array in (weight, *scales)), 2 * rows * shape[0] * shape[1]
        nbytes = nbytes * 3 // 4 if dtype == CODED else nbytes  # the rest is room for what is not usual
        found.append(
            {
                "matrix": matrix,
                "shape": shape,
                "dtype": dtype,
                "rows": rows,
                "read_gb_s": round(median["bandwidth"] / 1e9, 1),
                "floor_ms": round(nbytes / median["bandwidth"] * 1e3, 3),
                "ms": {form: round(median[form] * 1e3, 3) for form in calls},
                "cpu_ms": {form: round(cpu_median[form] * 1e3, 3) for form in calls},
                "gb_s": {form: round(nbytes / median[form] / 1e9, 1) for form in calls},
                "gflop_s": {form: round(operations / median[form] / 1e9, 1) for form in calls},
            }
        )
    return found


def made(dtype: str, generator: np.random.Generator, shape: tuple[int, int]) -> list[jax.Array]:
    """A matrix, with scales and zeros where it has some."""
    if dtype == CODED:
        bits = (0.02 * generator.normal(size=shape)).astype(jnp.bfloat16).view(np.uint16)
        coded = np.empty((shape[0], shape[1] + HEAD), np.uint16)
        Coder(obtain_library(FOLDER / SOURCE, native_directory(), Recipe.of(FOLDER)).symbols).code(bits, coded, 0)
        return [jnp.asarray(coded)]
    integers = jnp.asarray(generator.integers(-127, 128, size=shape, dtype=np.int8))
    if dtype not in SCALED:
        scales = [jnp.ones(shape[0], jnp.float32)] if dtype == "int8" else []
        return [integers.astype(dtype), *scales]
    of_groups = (shape[1] // (SCALED[dtype] or shape[1]), shape[0])
    scales = jnp.full(of_groups, 0.01, jnp.bfloat16 if of_groups[0] > 1 else jnp.float32)
    if dtype in PAIRED:
        bits = generator.integers(0, 256, size=(shape[0] // 2, shape[1]), dtype=np.uint8)
        pairs = jnp.asarray(packed(bits) if dtype == "int4-packed" else bits)
        return [pairs, scales, jnp.ones_like(scales)] if dtype in WITH_ZEROS else [pairs, scales]
    if dtype.startswith("q"):
        return [integers.astype(jnp.int8), scales]
    return [integers.astype(jnp.float8_e4m3fn), scales]


def compiled(dtype: str, name: str | None, *arguments: Any) -> Callable[..., jax.Array]:
    """A product by the library of this name, or by XLA."""

    def multiply(x: jax.Array, weight: jax.Array, *scales: jax.Array) -> jax.Array:
        with calling(name):
            if dtype == CODED:
                return coded_matmul(x.astype(jnp.bfloat16), (weight,), platform="cpu")[0]
            if dtype not in SCALED:
                return matmul(x, weight, scales=scales[0] if scales else None, platform="cpu")
            options = {"group": SCALED[dtype] or x.shape[1], "compute": jnp.bfloat16}
            options |= {"pairs": "float4_e2m1fn"} if dtype == "mxfp4" else {}
            return scaled_matmul(x, weight, *scales, **options, platform="cpu")

    found: Callable[..., jax.Array] = jax.jit(multiply).lower(*arguments).compile()
    return found


if __name__ == "__main__":
    main()
