"""Static roofline of `grouped_matmul` on a TPU: the compiler's own kernel for experts, from its final schedule. Nothing is run.

The kernel visits each pair of a tile of rows and an expert that has rows in it, multiplies the whole tile with the expert's
matrix, and reads the next matrix meanwhile: a visit takes as long as its bundles, or as its copies at the published bandwidth.
The bound is the longer one of reading the matrices of the experts that so many tokens are likely to choose, and of multiplying
each row once at the published peak. What surrounds the products (routing, sorting, sums) is in `benchmarks/experts.py cycles`.

Found with libtpu 0.0.42 for v6e: products of Qwen3-30B-A3B's 128 experts reach 97 to 100% of the bound at 8 to 256 tokens, where
reading decides, and 78% at 2,048 (experts whose rows lie in two tiles are multiplied twice); of a fourth of Mixtral's 8 experts
80 to 94%, and 44 to 50% at 2,048, where a visit multiplies 256 rows while the next expert's matrix is read only before its first.

python -m benchmarks.grouped_products --target v6e v5e

Matrices as `[G, O, I]` are copied first, all of them: 403 MB of scratch for the 128 experts of Qwen3-30B-A3B in bfloat16 on v6e,
where 65 kB do for `[G, I, O]` (memory analysis of the compiled product of 512 rows, jax 0.10.2).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.kernels import compile_for
from jaxengine.bench import machine
from pallas_kernels import grouped_matmul
from xla_cache.chips import CHIPS
from xla_cache.schedules.bundles import dump_flags, read

KERNEL = "ragged-dot-none"
WINDOW = re.compile(r"window shape is \w+\[([\d,]+)\], while the full shape is \w+\[([\d,]+)\]")


@dataclass(frozen=True)
class Experts:
    """One product of a model's experts: `count` matrices `[inputs, outputs]`, of which a token takes `chosen`."""

    count: int
    chosen: int
    inputs: int
    outputs: int


MODELS = {
    "Qwen3-30B-A3B up": Experts(128, 8, 2048, 768),
    "Qwen3-30B-A3B down": Experts(128, 8, 768, 2048),
    "Mixtral-8x7B up, a fourth": Experts(8, 2, 4096, 3584),
    "Mixtral-8x7B down, a fourth": Experts(8, 2, 3584, 4096),
}
TOKENS = (8, 64, 256, 2048)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", nargs="+", default=["v6e"], choices=["v4", "v5e", "v5p", "v6e", "tpu7x"])
    parser.add_argument("--tokens", nargs="+", type=int, default=TOKENS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LIBTPU_INIT_ARGS"] = dump_flags(Path(folder))  # read when the compiler is loaded
        jax.config.update("jax_platforms", "cpu")
        rows = [
            {"target": target, "product": name, **figures(target, Path(folder), experts, tokens)}
            for target in options.target
            for name, experts in MODELS.items()
            for tokens in options.tokens
        ]
    print(json.dumps({"kind": "static estimate", "machine": machine.describe(), "rows": rows}, indent=1))


def figures(target: str, folder: Path, experts: Experts, tokens: int) -> dict[str, Any]:
    """Thousands of cycles that the schedule allows, and the bound."""
    chip = CHIPS[target]
    rows = tokens * experts.chosen
    shapes = [
        ((rows, experts.inputs), jnp.bfloat16),
        ((experts.count, experts.inputs, experts.outputs), jnp.bfloat16),
        ((experts.count,), jnp.int32),
    ]

    def product(x: jax.Array, weights: jax.Array, sizes: jax.Array) -> jax.Array:
        return grouped_matmul(x, weights, sizes, platform="tpu", dtype=jnp.bfloat16)

    compile_for(target, product, shapes)
    schedule = read(folder, KERNEL)
    [visit] = schedule.root.inner
    tile_rows, tile_inputs, tile_outputs = _tiling(folder, experts)
    parts = math.ceil(experts.inputs / tile_inputs) * math.ceil(experts.outputs / tile_outputs)
    touched = experts.count * (1 - (1 - experts.chosen / experts.count) ** tokens)
    per_cycle = chip.memory_bandwidth / chip.clock_hz
    reading = 2 * tile_inputs * tile_outputs / per_cycle
    # each visited expert is read once, whatever tiles it has rows in; a tile with rows of several is visited by each of them
    visits = touched + math.ceil(rows / tile_rows) - 1
    bundles = visit.end - visit.start
    taken = parts * (touched * max(bundles, reading) + (visits - touched) * bundles)
    matrix_bytes = 2 * experts.inputs * experts.outputs
    bytes_bound = touched * matrix_bytes / per_cycle
    flops_bound = 2 * rows * experts.inputs * experts.outputs / (chip.matrix_flops / chip.clock_hz)
    return {
        **asdict(experts),
        "tokens": tokens,
        "tile": [tile_rows, tile_inputs, tile_outputs],
        "experts_touched": round(touched, 1),
        "visits": round(visits, 1),
        "bundles_per_visit": bundles,
        "copy_cycles_per_matrix_tile": round(reading),
        "kilocycles": round(taken / 1e3, 1),
        "bound_kilocycles": round(max(bytes_bound, flops_bound) / 1e3, 1),
        "limited_by": "memory" if bytes_bound >= flops_bound else "compute",
        "share_of_bound": round(max(bytes_bound, flops_bound) / taken, 3),
        "units_busy": {unit: round(share, 3) for unit, share in schedule.busy(visit.start, visit.end).items()},
    }


def _tiling(folder: Path, experts: Experts) -> tuple[int, int, int]:
    """Rows, inputs and outputs of a visit, which the dump tells as windows of the kernel's operands."""
    dumps = (path for path in folder.glob(f"*{KERNEL}*original.txt"))
    windows = dict(_windows(max(dumps, key=lambda path: path.stat().st_mtime_ns).read_text()))
    _, inputs, outputs = windows[experts.count, experts.inputs, experts.outputs]
    rows = next(window[0] for full, window in windows.items() if len(full) == 2 and full[1] == experts.inputs)
    return rows, inputs, outputs


def _windows(text: str) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The full shape of each operand, and its window's."""
    for window, full in WINDOW.findall(text):
        yield tuple(map(int, full.split(","))), tuple(map(int, window.split(",")))


if __name__ == "__main__":
    main()
