"""Paged attention on a GPU: does it agree there, how much of the memory's speed does decode reach, how fast is a prompt? JSON.

`python -m benchmarks.gpu_attention` needs a GPU. Agreement: every conformance case that the backend claims, compiled for the
device, against the reference on the CPU; any disagreement exits with 1. Speed: one layer's decode, as keys and values read per
second, as a share of what a device-to-device copy reads and writes per second, both measured here. Calls follow each other inside
one program, each on pages of its own, so that neither launching nor the cache of the GPU counts. A prompt's chunk of tokens after
others counts two multiplications and additions for each number of a key and of a value that a query sees.

`--interpret` runs all of it at a tiny size in Pallas' interpret mode, on any machine, to try the script: times mean nothing then.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.gpu_report import gpu_or_trial, report
from pallas_kernels import paged_attention
from pallas_kernels.gpu.device import interpreted_gpu
from pallas_kernels.paged_attention import OP
from pallas_kernels.testing import ATTENTION_CASES, AttentionCase


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """What is timed: rows and contexts of decode with the heads of Llama-3.1-8B, or less of everything."""

    rows: tuple[int, ...] = (1, 16, 64, 256)
    contexts: tuple[int, ...] = (1024, 8192)
    chunk: int = 2048
    before: tuple[int, ...] = (0, 6144, 30_720)
    heads: int = 32
    kv_heads: int = 8
    head_size: int = 128
    page_tokens: int = 64
    uncached_bytes: int = 512 << 20  # ten times an H200's cache
    most_layers: int = 64
    copy_bytes: int = 2 << 30
    repeat: int = 20


TINY = Sizes(
    rows=(1, 2),
    contexts=(80,),
    chunk=40,
    before=(24,),
    heads=4,
    kv_heads=2,
    head_size=16,
    page_tokens=16,
    uncached_bytes=20_000,
    most_layers=2,
    copy_bytes=1 << 20,
    repeat=2,
)
TINY_CASES = ("padding-rows", "all-options", "bfloat16-bfloat16-bits")


def main(arguments: list[str] | None = None) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", nargs="+", default=["gpu"], choices=list(OP.backends), help="timed in turn")
    parser.add_argument("--repeat", type=int, default=None, help="timed runs of each program; the best one counts")
    parser.add_argument("--interpret", action="store_true")
    options = parser.parse_args(arguments)
    device = gpu_or_trial(parser, interpret=options.interpret)
    sizes = TINY if options.interpret else Sizes()
    cases = [case for case in ATTENTION_CASES if not options.interpret or case.name in TINY_CASES]
    repeat = options.repeat or sizes.repeat
    with interpreted_gpu() if options.interpret else nullcontext():
        agreed = [agreement(case) for case in cases]
        copied = copy_speed(sizes.copy_bytes, repeat)
        decoded = [
            decode(sizes, rows, context, options.backend, repeat, copied)
            for rows, context in itertools.product(sizes.rows, sizes.contexts)
        ]
        chunks = [prefill(sizes, before, options.backend, repeat) for before in sizes.before]
    wrong = [case["case"] for case in agreed if case.get("agrees") is False]
    found = {"agreement": {"wrong": wrong, "cases": agreed}, "decode": decoded, "prefill": chunks}
    told = report("gpu_attention", device, interpret=options.interpret, copied=copied, **found)
    print(json.dumps(told, indent=2))
    return 1 if wrong else 0


def agreement(case: AttentionCase) -> dict[str, Any]:
    """The largest difference from the reference, or why the backend refuses the case."""
    inputs = case.inputs("gpu")
    refused = OP.supports("gpu", *inputs, **case.options)
    if refused is not None:
        return {"case": case.name, "refused": refused}
    result = jax.jit(functools.partial(paged_attention, backend="gpu", **case.options))(*inputs)
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        expected = paged_attention(*case.inputs("gpu"), backend="reference", **case.options)
    difference = np.abs(np.asarray(result, np.float64) - np.asarray(expected, np.float64)).max()
    return {
        "case": case.name,
        "largest_difference": float(difference),
        "tolerance": case.tolerance,
        "agrees": bool(difference <= case.tolerance),  # false for NaN too
    }


def copy_speed(size: int, repeat: int) -> float:
    """Bytes read and written per second by copying `size` bytes on the device, at the best of `repeat` runs."""
    source = jnp.ones(size // 4, jnp.float32)
    return 2 * source.nbytes / best(jax.jit(jnp.copy), repeat, source)


def decode(sizes: Sizes, rows: int, context: int, backends: list[str], repeat: int, copied: float) -> dict[str, Any]:
    """Seconds and speed of each backend on one shape; rows lie on pages in random order."""
    per_row = -(-context // sizes.page_tokens)
    row_bytes = 2 * 2 * context * sizes.kv_heads * sizes.head_size
    layers = max(1, min(sizes.most_layers, -(-sizes.uncached_bytes // (rows * row_bytes))))
    num_pages = 1 + layers * rows * per_row
    rng = np.random.default_rng(0)
    page = rng.normal(size=(1, sizes.page_tokens, 2 * sizes.kv_heads, sizes.head_size))
    kv_pages = jnp.tile(jnp.asarray(page, jnp.bfloat16), (num_pages, 1, 1, 1))
    tables = 1 + rng.permutation(num_pages - 1).reshape(layers, rows, per_row)
    inputs = (
        jnp.asarray(rng.normal(size=(rows, sizes.heads, sizes.head_size)), jnp.bfloat16),
        kv_pages,
        jnp.asarray(tables, jnp.int32),
        jnp.arange(rows + 1, dtype=jnp.int32),
        jnp.full(rows, context - 1, jnp.int32),
    )
    timed = {}
    for backend in backends:
        seconds = best(_layers(backend, layers, sizes.head_size**-0.5), repeat, *inputs) / layers
        speed = rows * row_bytes / seconds
        timed[backend] = {
            "microseconds": round(seconds * 1e6, 2),
            "gb_per_s": round(speed / 1e9, 1),
            "share_of_copy": round(speed / copied, 3),
        }
    shape = {name: asdict(sizes)[name] for name in ("heads", "kv_heads", "head_size", "page_tokens")}
    return {"rows": rows, "context": context, **shape, "layers": layers, "backends": timed}


def prefill(sizes: Sizes, before: int, backends: list[str], repeat: int) -> dict[str, Any]:
    """Seconds and operations of each backend for a chunk of one prompt after so many tokens."""
    per_row = -(-(before + sizes.chunk) // sizes.page_tokens)
    layers = min(sizes.most_layers, 4)
    rng = np.random.default_rng(0)
    pages = jax.random.normal(
        jax.random.key(0), (1 + per_row, sizes.page_tokens, 2 * sizes.kv_heads, sizes.head_size), jnp.bfloat16
    )
    inputs = (
        jnp.asarray(rng.normal(size=(sizes.chunk, sizes.heads, sizes.head_size)), jnp.bfloat16),
        pages,
        jnp.asarray(1 + rng.permutation(per_row)[None, None].repeat(layers, axis=0), jnp.int32),
        jnp.asarray([0, sizes.chunk], jnp.int32),
        jnp.asarray([before], jnp.int32),
    )
    operations = 4 * sizes.heads * sizes.head_size * sizes.chunk * (before + (sizes.chunk + 1) / 2)
    timed = {}
    for backend in backends:
        seconds = best(_layers(backend, layers, sizes.head_size**-0.5), repeat, *inputs) / layers
        timed[backend] = {
            "microseconds": round(seconds * 1e6, 2),
            "tflop_per_s": round(operations / seconds / 1e12, 1),
        }
    return {"tokens": sizes.chunk, "before": before, "backends": timed}


def _layers(backend: str, layers: int, scale: float) -> Callable[..., jax.Array]:
    """A program of `layers` calls, each with the result of the one before as its queries."""

    @jax.jit
    def run(q: jax.Array, kv_pages: jax.Array, tables: jax.Array, offsets: jax.Array, starts: jax.Array) -> jax.Array:
        for layer in range(layers):
            q = paged_attention(q, kv_pages, tables[layer], offsets, starts, scale=scale, backend=backend)
        return q

    return run


def best(function: Callable[..., jax.Array], repeat: int, *arrays: jax.Array) -> float:
    """The shortest of `repeat` runs in seconds, after one that compiles."""
    function(*arrays).block_until_ready()
    return min(_seconds(function, repeat, *arrays))


def _seconds(function: Callable[..., jax.Array], repeat: int, *arrays: jax.Array) -> Iterator[float]:
    for _ in range(repeat):
        begun = time.perf_counter()
        function(*arrays).block_until_ready()
        yield time.perf_counter() - begun


if __name__ == "__main__":
    sys.exit(main())
