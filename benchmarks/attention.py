"""Milliseconds of paged attention per layer on this machine, beside the time its bytes take at the least. JSON out.

Backends and a baseline that gathers all pages of all rows are timed in turn within one run, so that a busy machine slows all of
them. Between calls the page tables change: no call finds its pages in the processor's cache unless the pool fits into it.

python -m benchmarks.attention --page-size 16 32

Writing into a cache of 67 MB in a 16-bit float type took jax 0.10 80 ms, whatever the number of tokens, and well under a
millisecond into the same bits as unsigned integers (`pallas_kernels/storage.py`).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from benchmarks.memory import read_bandwidth
from jaxengine.bench import machine
from jaxengine.startup.native import register_native
from jaxengine.startup.native_libraries import native_directory
from pallas_kernels import kv_storage_dtype, paged_attention
from pallas_kernels.native import calling
from pallas_kernels.storage import to_float32

LAYERS = 4


@dataclass(frozen=True)
class Shape:
    """`rows` rows of `count` new tokens each, the last of which sees `context` positions."""

    rows: int
    count: int
    context: int
    kv_heads: int
    heads: int
    head_size: int

    @property
    def cached_bytes(self) -> int:
        """Keys and values that have to be read once, in a 16-bit cache."""
        return self.rows * self.context * 2 * self.kv_heads * self.head_size * 2

    @property
    def operations(self) -> int:
        """Floating-point operations of the two products, unseen positions left out."""
        seen = self.count * self.context - self.count * (self.count - 1) // 2
        return 4 * self.rows * seen * self.heads * self.head_size


HEADS = {"kv_heads": 8, "heads": 16, "head_size": 128}
SHAPES = (
    Shape(8, 1, 256, **HEADS),
    Shape(32, 1, 256, **HEADS),
    Shape(8, 1, 2048, **HEADS),
    Shape(1, 512, 512, **HEADS),
    Shape(8, 64, 64, **HEADS),
    Shape(8, 128, 1024, **HEADS),
    Shape(32, 1, 256, kv_heads=2, heads=4, head_size=64),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page-size", type=int, nargs="+", default=[16])
    parser.add_argument("--repeat", type=int, default=20)
    parser.add_argument("--backend", nargs="+", default=["xla"], help="`native` is the CPU's own")
    arguments = parser.parse_args()
    bandwidth = read_bandwidth(10)
    with calling(register_native(native_directory())[0] if "native" in arguments.backend else None):
        results = [
            measure(shape, page_size, arguments.backend, arguments.repeat, bandwidth)
            for page_size in arguments.page_size
            for shape in tqdm(SHAPES, desc=f"pages of {page_size}", unit="shape")
        ]
    print(
        json.dumps(
            {
                "benchmark": "attention",
                "machine": machine.describe(),
                "platform": jax.default_backend(),
                "read_gb_per_s": round(bandwidth / 1e9, 1),
                "repeat": arguments.repeat,
                "results": results,
            },
            indent=2,
        )
    )


def measure(shape: Shape, page_size: int, backends: list[str], repeat: int, bandwidth: float) -> dict[str, Any]:
    """Best and median milliseconds of every candidate on one shape, and their ratio to the time of reading the cache once."""
    rng = np.random.default_rng(0)
    per_row = -(-shape.context // page_size)
    num_pages = 1 + LAYERS * shape.rows * per_row
    size = (num_pages, page_size, 2 * shape.kv_heads, shape.head_size)
    kv_pages = jnp.asarray(rng.standard_normal(size, np.float32), jnp.bfloat16)
    if kv_storage_dtype(jnp.bfloat16, platform=jax.default_backend()) == jnp.uint16:
        kv_pages = jax.lax.bitcast_convert_type(kv_pages, jnp.uint16)
    pages = 1 + rng.permutation(num_pages - 1).reshape(LAYERS, shape.rows, per_row)
    tables = [jnp.asarray(table, jnp.int32) for table in pages]
    q = jnp.asarray(rng.normal(size=(shape.rows * shape.count, shape.heads, shape.head_size)), jnp.bfloat16)
    offsets = jnp.arange(shape.rows + 1, dtype=jnp.int32) * shape.count
    starts = jnp.full(shape.rows, shape.context - shape.count, jnp.int32)
    scale = shape.head_size**-0.5

    functions: dict[str, Callable[..., jax.Array]] = {
        name: lambda *arrays, name=name: paged_attention(*arrays, scale=scale, backend=name) for name in backends
    }
    functions["gather_everything"] = lambda *arrays: gather_everything(*arrays, scale=scale)
    compiled = {
        name: jax.jit(function).lower(q, kv_pages, tables[0], offsets, starts).compile()
        for name, function in functions.items()
    }
    times: dict[str, list[float]] = {name: [] for name in compiled}
    cpu_times: dict[str, list[float]] = {name: [] for name in compiled}
    for turn in range(repeat + 1):
        for name, call in compiled.items():
            begun, cpu_begun = time.perf_counter(), time.process_time()
            call(q, kv_pages, tables[turn % LAYERS], offsets, starts).block_until_ready()
            times[name].append((time.perf_counter() - begun) * 1e3)
            cpu_times[name].append((time.process_time() - cpu_begun) * 1e3)
    floor = shape.cached_bytes / bandwidth * 1e3
    return {
        **asdict(shape),
        "page_size": page_size,
        "cached_mb": round(shape.cached_bytes / 1e6, 1),
        "floor_ms": round(floor, 3),
        "candidates": {
            name: {
                "best_ms": round(min(values[1:]), 3),
                "median_ms": round(float(np.median(values[1:])), 3),
                "cpu_ms": round(float(np.median(cpu_times[name][1:])), 3),  # of all threads, on this machine
                "times_floor": round(min(values[1:]) / floor, 1),
                "gflop_per_s": round(shape.operations / min(values[1:]) / 1e6, 1),
                "temporary_mb": round(compiled[name].memory_analysis().temp_size_in_bytes / 1e6, 1),
            }
            for name, values in times.items()
        },
    }


def gather_everything(
    q: jax.Array, kv_pages: jax.Array, table: jax.Array, offsets: jax.Array, starts: jax.Array, *, scale: float
) -> jax.Array:
    """What one writes first, for rows of one length: all pages in float32, one softmax. Not safe against stale memory."""
    rows = table.shape[0]
    heads, head_size = q.shape[1:]
    kv_heads = kv_pages.shape[2] // 2
    cached = to_float32(kv_pages[table], kv_dtype=jnp.bfloat16).reshape(rows, -1, kv_heads, 2, head_size)
    grouped = q.astype(jnp.float32).reshape(rows, -1, kv_heads, heads // kv_heads, head_size)
    scores = scale * jnp.einsum("bskgh,bpkh->bskgp", grouped, cached[:, :, :, 0])
    token = starts[:, None] + jnp.arange(grouped.shape[1])
    visible = jnp.arange(cached.shape[1]) <= token[:, :, None]
    weights = jax.nn.softmax(jnp.where(visible[:, :, None, None], scores, -jnp.inf), axis=-1)
    return jnp.einsum("bskgp,bpkh->bskgh", weights, cached[:, :, :, 1]).reshape(q.shape).astype(q.dtype)


if __name__ == "__main__":
    main()
