"""Static roofline of the TPU attention kernels, from the real compiler's schedule: no TPU, nothing is run, nothing is measured.

`python -m benchmarks.kernels --target v5e v6e` prints JSON. What is read: the final bundles of each kernel and how many of each
unit's slots they use. What is computed: the bytes that a block's copies move, over the chip's published bandwidth, and the
operations of its products, over the published peak. A share is therefore a bound that the schedule allows: a memory
system that falls behind, or stalls that bundles do not show, make the real figure lower.

Found with libtpu 0.0.42 for Llama-3.1-8B's heads. Decode in bfloat16: 98% of the bandwidth from 1,024 positions on, on v5e
and v6e. In int8, half the bytes: 97% on v5e, 73 to 80% on v6e (still 1.6 times as fast as bfloat16), where the vector unit
limits. It limits float8 to 51 to 53% on v5e, hardly faster than bfloat16, and to 32 to 34% on v6e, slower than bfloat16: a
value takes a dozen vector operations to unpack. Prefill: 90% of the matrix units' peak on v5e, where they limit; on v6e 31%
for rows of 128 and 37% for rows of 512. Heads of 128 fill half of a unit of 256 x 256 there, so that units busy in every
cycle would come to 52 to 55%; they are busy in 57 to 70% of cycles, and so is the vector unit.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from benchmarks import machine
from benchmarks.bundles import Loop, Schedule, dump_flags, read
from pallas_kernels import kv_page_shape, paged_attention
from pallas_kernels.check import Heads, devices
from pallas_kernels.paged_attention import tpu
from pallas_kernels.storage import QUANTISED
from pallas_kernels.tpu_chip import target_chip
from xla_cache.chips import CHIPS

HEADS, KV_HEADS, SIZE = 32, 8, 128  # Llama-3.1-8B; what the baselines compute
CACHES = ("bfloat16", "int8", "float8_e4m3fn")
PAGE_TOKENS = 64
PAGES, PAGES_PER_ROW = 4096, 128
DECODE_ROWS = 64
CONTEXTS = (1024, 8192)
PREFILL = ((8, 128), (4, 512))
HEAVY = 100  # vector operations from which a piece of a loop is computation, not bookkeeping


@dataclass(frozen=True)
class Block:
    """Bundles of one pass of the loop over blocks of pages: of a block that all see, and of one that needs masks."""

    whole: int
    masked: int
    computing: tuple[int, int]  # the range of bundles of the computation alone, without masks
    row: int  # bundles around the loop, per row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", nargs="+", default=["v5e", "v6e"], choices=["v4", "v5e", "v5p", "v6e", "tpu7x"])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LIBTPU_INIT_ARGS"] = dump_flags(
            Path(folder)
        )  # read when the compiler is loaded, by the first target
        jax.config.update("jax_platforms", "cpu")
        results = {target: report(target, Path(folder)) for target in options.target}
    print(json.dumps({"kind": "static estimate", "machine": machine.describe(), "targets": results}, indent=2))


def report(target: str, folder: Path) -> dict[str, Any]:
    """All kernels for one chip."""
    chip = CHIPS[target]
    result: dict[str, Any] = {
        "bandwidth": chip.memory_bandwidth,
        "peak": chip.matrix_flops,
        "clock": chip.clock_hz,
        "decode": {kv_dtype: decode(target, folder, _heads(kv_dtype)) for kv_dtype in CACHES},
        "prefill": {f"{rows}x{places}": prefill(target, folder, _heads(), rows, places) for rows, places in PREFILL},
    }
    for name, baseline in (("paged_attention", _jax_paged), ("ragged_paged_attention", _jax_ragged)):
        try:
            result[f"jax {name}"] = baseline(target, folder)
        except Exception as error:  # that a baseline does not compile is a finding
            result[f"jax {name}"] = f"no figures: {type(error).__name__}: {str(error)[:200]}"
    return result


def _heads(kv_dtype: str = "bfloat16") -> Heads:
    return Heads(HEADS, KV_HEADS, SIZE, kv_dtype=kv_dtype)


def decode(target: str, folder: Path, heads: Heads) -> dict[str, Any]:
    """The share of the bandwidth that the schedule allows, per block and for whole rows."""
    chip = CHIPS[target]
    pages, schedule = _ours(target, folder, heads, DECODE_ROWS, 1)
    block = _block(schedule, pages)
    page_bytes = math.prod(_page(heads)) * jnp.dtype(heads.kv_dtype).itemsize
    cycles_per_page = page_bytes / chip.memory_bandwidth * chip.clock_hz
    contexts = {}
    for context in CONTEXTS:
        whole, left = divmod(-(-context // PAGE_TOKENS), pages)
        last = left or pages  # the row's last block is masked
        blocks = [(pages, block.whole)] * (whole - (not left)) + [(last, block.masked)]
        ideal = sum(count for count, _ in blocks) * cycles_per_page
        # Copies of the next block run while this one is computed: the slower of the two decides.
        taken = sum(max(count * cycles_per_page, bundles) for count, bundles in blocks) + block.row
        contexts[str(context)] = round(ideal / taken, 3)
    return {
        "block_tokens": pages * PAGE_TOKENS,
        "bundles_whole_block": block.whole,
        "bundles_masked_block": block.masked,
        "bundles_around_a_row": block.row,
        "copy_cycles_per_block": round(pages * cycles_per_page),
        "bandwidth_share_in_the_loop": round(min(1.0, pages * cycles_per_page / block.whole), 3),
        "bandwidth_share_by_context": contexts,
        "units_busy": _units(schedule, *block.computing),
    }


def prefill(target: str, folder: Path, heads: Heads, rows: int, places: int) -> dict[str, Any]:
    """The share of the matrix units' peak in the innermost loop, over heads, of a block without masks."""
    chip = CHIPS[target]
    pages, schedule = _ours(target, folder, heads, rows, places)
    loop = [loop for loop in schedule.root.walk() if not loop.inner and schedule.work(loop.start, loop.end)["MXU"]][-1]
    bundles = loop.end - loop.start
    blocks = _blocks(target, heads, rows, places)
    queries, tokens = blocks.places * heads.query // heads.kv, pages * PAGE_TOKENS
    operations = 2 * 4 * queries * tokens * heads.size  # two heads a pass, two products each
    busy = _units(schedule, loop.start, loop.end)
    return {
        "queries_x_tokens": [queries, tokens],
        "bundles_per_pass": bundles,
        "peak_share": round(operations / (bundles * chip.matrix_flops / chip.clock_hz), 3),
        "units_busy": busy,
        "limiting_unit": max(busy, key=lambda unit: busy[unit]),
    }


def _ours(target: str, folder: Path, heads: Heads, rows: int, places: int) -> tuple[int, Schedule]:
    """Pages per block and the schedule of this project's kernel."""

    def attend(*arrays: Any) -> Any:
        kv_scales = arrays[5] if len(arrays) > 5 else None
        return paged_attention(
            *arrays[:5], scale=heads.size**-0.5, kv_heads=heads.kv, kv_scales=kv_scales, backend="tpu"
        )

    kv_dtype = jnp.dtype(heads.kv_dtype)
    shapes = [
        ((rows, places, heads.query, heads.size), jnp.bfloat16),
        ((PAGES, *_page(heads)), kv_dtype),
        ((rows, PAGES_PER_ROW), jnp.int32),
        ((rows,), jnp.int32),
        ((rows,), jnp.int32),
        *([((2, heads.kv), jnp.float32)] if kv_dtype in QUANTISED else []),
    ]
    _compile(target, attend, shapes)
    return _blocks(target, heads, rows, places).pages, read(folder, "paged_attention")


def _page(heads: Heads) -> tuple[int, int, int]:
    return kv_page_shape(PAGE_TOKENS, heads.kv, heads.size, platform="tpu", dtype=heads.kv_dtype)


def _blocks(target: str, heads: Heads, rows: int, places: int) -> Any:
    with jax.set_mesh(_mesh(target)):
        chip = target_chip()
        assert chip is not None
        q = jax.ShapeDtypeStruct((rows, places, heads.query, heads.size), jnp.bfloat16)
        return tpu.blocks_for(chip, q, jax.ShapeDtypeStruct((PAGES, *_page(heads)), heads.kv_dtype), heads.kv)


def _block(schedule: Schedule, pages: int) -> Block:
    """The loop over blocks: the innermost one with products and copies. It holds both ways of computing, masked first.

    A whole block's copies are started without a loop and waited for at once; those of a row's last block, the masked one, are
    waited for page by page. (Starting fewer than a whole block takes a loop, of as many bundles a page or less.)
    """
    loop = _main_loop(schedule)
    waiting = [inner for inner in loop.inner if not schedule.contains(inner.start, inner.end, "dma.hbm_to_vmem")]
    heavy, bookkeeping = [], 0
    for start, end in schedule.straight(loop):
        if schedule.work(start, end)["VALU"] >= HEAVY:
            heavy.append((start, end))
        else:
            bookkeeping += end - start
    masked, whole = (end - start for start, end in heavy)
    around = next(parent for parent in schedule.root.walk() if loop in parent.inner)
    return Block(
        whole=bookkeeping + whole,
        masked=bookkeeping + masked + pages * sum(inner.end - inner.start for inner in waiting),
        computing=heavy[1],
        row=sum(end - start for start, end in schedule.straight(around)),
    )


def _main_loop(schedule: Schedule) -> Loop:
    candidates = [
        loop
        for loop in schedule.root.walk()
        if schedule.contains(loop.start, loop.end, "dma.hbm_to_vmem") and schedule.work(loop.start, loop.end)["MXU"]
    ]
    return max(candidates, key=lambda loop: loop.depth)


def _units(schedule: Schedule, start: int, end: int) -> dict[str, float]:
    return {unit: round(share, 3) for unit, share in schedule.busy(start, end).items()}


def _jax_paged(target: str, folder: Path) -> dict[str, Any]:
    """jax's own decode kernel; a pass of its loop takes 512 tokens of one KV head."""
    from jax.experimental.pallas.ops.tpu.paged_attention import paged_attention as jax_paged_attention

    pages = 512 // PAGE_TOKENS
    pool = ((KV_HEADS, PAGES, PAGE_TOKENS, SIZE), jnp.bfloat16)
    shapes = [
        ((DECODE_ROWS, HEADS, SIZE), jnp.bfloat16),
        pool,
        pool,
        ((DECODE_ROWS,), jnp.int32),
        ((DECODE_ROWS, PAGES_PER_ROW), jnp.int32),
    ]
    _compile(target, lambda *arrays: jax_paged_attention(*arrays, pages_per_compute_block=pages), shapes)
    return _baseline(target, read(folder, "paged"), block_bytes=2 * pages * PAGE_TOKENS * SIZE * 2)


def _jax_ragged(target: str, folder: Path) -> dict[str, Any]:
    """jax's ragged kernel in decode: blocks of 512 tokens, as this project's, and of 32 rows."""
    from jax.experimental.pallas.ops.tpu.ragged_paged_attention import ragged_paged_attention

    pages = 512 // PAGE_TOKENS
    shapes = [
        ((DECODE_ROWS, HEADS, SIZE), jnp.bfloat16),
        ((PAGES, PAGE_TOKENS, 2 * KV_HEADS, SIZE), jnp.bfloat16),
        ((DECODE_ROWS,), jnp.int32),
        ((DECODE_ROWS, PAGES_PER_ROW), jnp.int32),
        ((DECODE_ROWS + 1,), jnp.int32),
        ((1,), jnp.int32),
    ]

    def attend(*arrays: Any) -> Any:
        return ragged_paged_attention(
            *arrays, num_kv_pages_per_block=pages, num_queries_per_block=DECODE_ROWS // 2, vmem_limit_bytes=64 << 20
        )

    _compile(target, attend, shapes)
    return _baseline(target, read(folder, "ragged"), block_bytes=pages * PAGE_TOKENS * 2 * KV_HEADS * SIZE * 2)


def _baseline(target: str, schedule: Schedule, *, block_bytes: int) -> dict[str, Any]:
    """A pass of the loop over blocks, all its branches counted as taken."""
    chip = CHIPS[target]
    loop = _main_loop(schedule)
    bundles = loop.end - loop.start
    cycles = block_bytes / chip.memory_bandwidth * chip.clock_hz
    return {
        "bundles_per_pass": bundles,
        "copy_cycles_per_pass": round(cycles),
        "bandwidth_share_in_the_loop": round(min(1.0, cycles / bundles), 3),
        "units_busy": _units(schedule, loop.start, loop.end),
    }


def _mesh(target: str) -> Any:
    return Mesh(np.asarray(devices(target, 1)), ("tensor",))


def _compile(target: str, function: Callable[..., Any], shapes: list[tuple[tuple[int, ...], Any]]) -> None:
    mesh = _mesh(target)
    structs = [jax.ShapeDtypeStruct(*shape, sharding=NamedSharding(mesh, PartitionSpec())) for shape in shapes]
    with jax.set_mesh(mesh):
        jax.jit(function).trace(*structs).lower(lowering_platforms=("tpu",)).compile()


if __name__ == "__main__":
    main()
