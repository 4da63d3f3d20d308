"""Static roofline of the TPU attention kernels, from the real compiler's schedule: no TPU, nothing is run, nothing is measured.

`python -m benchmarks.kernels --target v5e v6e` prints JSON. What is read: the final bundles of each kernel and how many of each
unit's slots they use. What is computed: the bytes that a block's copies move, over the chip's published bandwidth, and the
operations of its products, over the published peak. A share is therefore a bound that the schedule allows: a memory
system that falls behind, or stalls that bundles do not show, make the real figure lower. Where a device has two cores (v4, v5p),
they share its rows, its bandwidth and its peak evenly; jax's kernels run on one of them, to which all bandwidth is counted.

Found with libtpu 0.0.42 for Llama-3.1-8B's heads on v6e. Decode in bfloat16: 98% of the bandwidth at 1,024 positions, 99.8%
at 8,192. In int8, half the bytes: 76 and 78% (still 1.5 times as fast as bfloat16), where the vector unit limits. float8: 33%,
slower than bfloat16, for a value takes a dozen vector operations to unpack. Rows of 2 to 16 tokens: 85 and 90%. Prompts: 46% of
the matrix units' peak in the loop over heads with tiles of 256 tokens (1,024 queries), 43% with 128; a whole tile at the end of
1,024 positions 25%, of 8,192 34%, since each takes apart its blocks' keys and values and moves its own tokens. Heads of 128 fill
half of a unit of 256 x 256, so that units busy in every cycle would come to 52%; they are busy in 90% of cycles, for the weights
are summed in columns that values leave idle (70% and 37% of the peak when the vector unit did that). What XLA computes before
the kernel, once for all layers, is some twenty tiny kernels: 45 thousand cycles.

Heads of a block together (`pallas_kernels/paged_attention/tpu_blocks.py`): two take 2,382 bundles on v6e if they are two at once,
and 2,207 if they are four; on v5e 2,307 and 2,413. 1,024 queries use 46% of the peak where 512 use 43%.
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

from jaxengine.bench import machine
from pallas_kernels import kv_page_shape, paged_attention
from pallas_kernels.check import Heads, devices
from pallas_kernels.paged_attention import tpu
from pallas_kernels.paged_attention.tpu_blocks import heads_together
from pallas_kernels.storage import QUANTISED
from pallas_kernels.tpu.attention.blocks import Blocks
from pallas_kernels.tpu.channels import SOME_PLACES
from pallas_kernels.tpu.chip import Chip, target_chip
from xla_cache.chips import CHIPS
from xla_cache.cycles import estimated_cycles
from xla_cache.schedules.bundles import Loop, Schedule, dump_flags, read

HEADS, KV_HEADS, SIZE = 32, 8, 128  # Llama-3.1-8B; what the baselines compute
CACHES = ("bfloat16", "int8", "float8_e4m3fn")
PAGE_TOKENS = 64
PAGES, PAGES_PER_ROW = 4096, 128
ROWS = 64
CONTEXTS = (1024, 8192)
DRAFTS = 16  # token places per row of a bucket for rows of a few tokens
PREFILL_TOKENS = (128, 2048)


@dataclass(frozen=True)
class Cut:
    """Bundles of the loops over the tiles of a cut and, inside, over blocks of pages.

    `block` is a pass without its inner loops, `computing` the range of its longest piece; `waiting` and `clearing` are for each
    page of a block that is there only in part, or not; `tile` is what is around the loop over blocks, without its inner loops.
    """

    block: int
    computing: tuple[int, int]
    waiting: int
    clearing: int
    tile: int
    heads: list[Loop]
    around: list[Loop]


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
        "decode": {kv_dtype: memory_bound(target, folder, _heads(kv_dtype), ROWS, cut=0) for kv_dtype in CACHES},
        "few tokens": memory_bound(target, folder, _heads(), ROWS * DRAFTS, cut=1),
        "prefill": {str(tokens): prefill(target, folder, _heads(), tokens) for tokens in PREFILL_TOKENS},
    }
    for name, baseline in (("paged_attention", _jax_paged), ("ragged_paged_attention", _jax_ragged)):
        try:
            result[f"jax {name}"] = baseline(target, folder)
        except Exception as error:  # that a baseline does not compile is a finding
            result[f"jax {name}"] = f"no figures: {type(error).__name__}: {str(error)[:200]}"
    return result


def _heads(kv_dtype: str = "bfloat16") -> Heads:
    return Heads(HEADS, KV_HEADS, SIZE, kv_dtype=kv_dtype)


def memory_bound(target: str, folder: Path, heads: Heads, tokens: int, *, cut: int) -> dict[str, Any]:
    """The share of the bandwidth that the schedule allows, per block and for whole rows that are a tile of `cut` each."""
    chip = CHIPS[target]
    schedule, scheduling = _ours(target, folder, heads, tokens)
    blocks, found = _blocks(target, heads, tokens)[cut], _cuts(schedule)[cut]
    page_bytes = math.prod(_page(heads)) * jnp.dtype(heads.kv_dtype).itemsize
    cycles_per_page = page_bytes / chip.memory_bandwidth * chip.clock_hz * cores_of(target)
    around = found.tile + sum(loop.end - loop.start for loop in found.around)
    contexts = {}
    for context in CONTEXTS:
        whole, left = divmod(-(-context // PAGE_TOKENS), blocks.pages)
        partly = found.block + left * found.waiting + (blocks.pages - left) * found.clearing
        passes = [(blocks.pages, found.block)] * whole + [(left, partly)] * bool(left)
        ideal = sum(count for count, _ in passes) * cycles_per_page
        # Copies of the next block run while this one is computed: the slower of the two decides.
        taken = sum(max(count * cycles_per_page, bundles) for count, bundles in passes) + around
        contexts[str(context)] = round(ideal / taken, 3)
    return {
        "queries_x_tokens": [blocks.places * heads.query // heads.kv, blocks.pages * PAGE_TOKENS],
        "bundles_per_block": found.block,
        "bundles_around_a_row": around,
        "copy_cycles_per_block": round(blocks.pages * cycles_per_page),
        "bandwidth_share_in_the_loop": round(min(1.0, blocks.pages * cycles_per_page / found.block), 3),
        "bandwidth_share_by_context": contexts,
        "units_busy": units_busy(schedule, *found.computing),
        "scheduling_cycles": scheduling,
    }


def prefill(target: str, folder: Path, heads: Heads, tokens: int) -> dict[str, Any]:
    """The share of the matrix units' peak in the innermost loop, over heads, and for a whole tile at the end of a context."""
    chip = CHIPS[target]
    schedule, scheduling = _ours(target, folder, heads, tokens)
    blocks, found = _blocks(target, heads, tokens)[-1], _cuts(schedule)[-1]
    whole_block, half, masked_block = found.heads
    loop, masked = (of.end - of.start for of in (whole_block, masked_block))
    queries, block_tokens = blocks.places * heads.query // heads.kv, blocks.pages * PAGE_TOKENS
    peak = chip.matrix_flops / chip.clock_hz / cores_of(target)
    together = heads_together(_chip(target), width=heads.size, kv_heads=heads.kv)
    passes = heads.kv // together  # of so many heads each, with two products each
    busy_loops = (loop for loop in found.around if schedule.work(loop.start, loop.end)["VALU"])
    take, give = (loop.end - loop.start for loop in busy_loops)
    around = found.tile + blocks.places // SOME_PLACES * (take + give)
    contexts = {}
    for context in CONTEXTS:
        whole = (context - blocks.places) // block_tokens  # blocks that all of the tile's tokens see
        partly = -(-context // block_tokens) - whole
        taken = around + (whole + partly) * found.block + passes * (whole * loop + partly * masked)
        seen = context - (blocks.places - 1) / 2
        contexts[str(context)] = round(4 * queries * seen * heads.size * heads.kv / (taken * peak), 3)
    busy = units_busy(schedule, whole_block.start, whole_block.end)
    return {
        "queries_x_tokens": [queries, block_tokens],
        "bundles_per_pass": loop,
        "bundles_per_masked_pass": masked,
        "bundles_per_masked_half": half.end - half.start,
        "bundles_around_passes": found.block,
        "bundles_around_a_tile": around,
        "peak_share": round(4 * together * queries * block_tokens * heads.size / (loop * peak), 3),
        "peak_share_of_a_tile_by_context": contexts,
        "units_busy": busy,
        "limiting_unit": max(busy, key=lambda unit: busy[unit]),
        "scheduling_cycles": scheduling,
    }


def _ours(target: str, folder: Path, heads: Heads, tokens: int) -> tuple[Schedule, int | None]:
    """The schedule of this project's kernel, and the cycles of what XLA computes before it, once for all layers."""

    def attend(*arrays: Any) -> Any:
        kv_scales = arrays[5] if len(arrays) > 5 else None
        return paged_attention(
            *arrays[:5], scale=heads.size**-0.5, kv_heads=heads.kv, kv_scales=kv_scales, backend="tpu"
        )

    kv_dtype = jnp.dtype(heads.kv_dtype)
    shapes = [
        ((tokens, heads.query, heads.size), jnp.bfloat16),
        ((PAGES, *_page(heads)), kv_dtype),
        ((ROWS, PAGES_PER_ROW), jnp.int32),
        ((ROWS + 1,), jnp.int32),
        ((ROWS,), jnp.int32),
        *([((2, heads.kv), jnp.float32)] if kv_dtype in QUANTISED else []),
    ]
    compiled = compile_for(target, attend, shapes)
    return read(folder, "paged_attention"), estimated_cycles(compiled)


def _page(heads: Heads) -> tuple[int, int, int]:
    return kv_page_shape(PAGE_TOKENS, heads.kv, heads.size, platform="tpu", dtype=heads.kv_dtype)


def _blocks(target: str, heads: Heads, tokens: int) -> tuple[Blocks, ...]:
    chip = _chip(target)
    with jax.set_mesh(mesh_of(target)):
        q = jax.ShapeDtypeStruct((tokens, heads.query, heads.size), jnp.bfloat16)
        cuts = tpu.blocks_for(chip, q, jax.ShapeDtypeStruct((PAGES, *_page(heads)), heads.kv_dtype), heads.kv)
        assert cuts is not None
        return cuts


def _cuts(schedule: Schedule) -> list[Cut]:
    """The cuts of a kernel in order: each has a loop over tiles with one over blocks, which has both products and copies."""

    def products_and_copies(loop: Loop) -> bool:
        copies = schedule.contains(loop.start, loop.end, "dma.hbm_to_vmem")
        return copies and bool(schedule.work(loop.start, loop.end)["MXU"])

    cuts = []
    for tile in (loop for loop in schedule.root.inner if products_and_copies(loop)):
        (block,) = (loop for loop in tile.inner if products_and_copies(loop))
        straight = schedule.straight(block)
        simple = [loop for loop in block.inner if not schedule.work(loop.start, loop.end)["MXU"]]
        waiting = next(loop for loop in simple if not schedule.contains(loop.start, loop.end, "dma.hbm_to_vmem"))
        cuts.append(
            Cut(
                block=sum(end - start for start, end in straight),
                computing=max(straight, key=lambda piece: schedule.work(*piece)["VALU"]),
                waiting=waiting.end - waiting.start,
                clearing=simple[-1].end - simple[-1].start,
                tile=sum(end - start for start, end in schedule.straight(tile)),
                heads=[loop for loop in block.inner if schedule.work(loop.start, loop.end)["MXU"]],
                around=[loop for loop in tile.inner if loop is not block],
            )
        )
    return cuts


def _main_loop(schedule: Schedule) -> Loop:
    candidates = [
        loop
        for loop in schedule.root.walk()
        if schedule.contains(loop.start, loop.end, "dma.hbm_to_vmem") and schedule.work(loop.start, loop.end)["MXU"]
    ]
    return max(candidates, key=lambda loop: loop.depth)


def units_busy(schedule: Schedule, start: int, end: int) -> dict[str, float]:
    return {unit: round(share, 3) for unit, share in schedule.busy(start, end).items()}


def _jax_paged(target: str, folder: Path) -> dict[str, Any]:
    """jax's own decode kernel; a pass of its loop takes 512 tokens of one KV head."""
    from jax.experimental.pallas.ops.tpu.paged_attention import paged_attention as jax_paged_attention

    pages = 512 // PAGE_TOKENS
    pool = ((KV_HEADS, PAGES, PAGE_TOKENS, SIZE), jnp.bfloat16)
    shapes = [
        ((ROWS, HEADS, SIZE), jnp.bfloat16),
        pool,
        pool,
        ((ROWS,), jnp.int32),
        ((ROWS, PAGES_PER_ROW), jnp.int32),
    ]
    compile_for(target, lambda *arrays: jax_paged_attention(*arrays, pages_per_compute_block=pages), shapes)
    return _baseline(target, read(folder, "paged"), block_bytes=2 * pages * PAGE_TOKENS * SIZE * 2)


def _jax_ragged(target: str, folder: Path) -> dict[str, Any]:
    """jax's ragged kernel in decode: blocks of 512 tokens, as this project's, and of 32 rows."""
    from jax.experimental.pallas.ops.tpu.ragged_paged_attention import ragged_paged_attention

    pages = 512 // PAGE_TOKENS
    shapes = [
        ((ROWS, HEADS, SIZE), jnp.bfloat16),
        ((PAGES, PAGE_TOKENS, 2 * KV_HEADS, SIZE), jnp.bfloat16),
        ((ROWS,), jnp.int32),
        ((ROWS, PAGES_PER_ROW), jnp.int32),
        ((ROWS + 1,), jnp.int32),
        ((1,), jnp.int32),
    ]

    def attend(*arrays: Any) -> Any:
        return ragged_paged_attention(
            *arrays, num_kv_pages_per_block=pages, num_queries_per_block=ROWS // 2, vmem_limit_bytes=64 << 20
        )

    compile_for(target, attend, shapes)
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
        "units_busy": units_busy(schedule, loop.start, loop.end),
    }


def cores_of(target: str) -> int:
    """How many cores of a device run a program's kernels side by side."""
    return _chip(target).cores


def _chip(target: str) -> Chip:
    with jax.set_mesh(mesh_of(target)):
        chip = target_chip()
    assert chip is not None
    return chip


def mesh_of(target: str) -> Any:
    return Mesh(np.asarray(devices(target, 1)), ("tensor",))


def compile_for(target: str, function: Callable[..., Any], shapes: list[tuple[tuple[int, ...], Any]]) -> Any:
    mesh = mesh_of(target)
    structs = [jax.ShapeDtypeStruct(*shape, sharding=NamedSharding(mesh, PartitionSpec())) for shape in shapes]
    with jax.set_mesh(mesh):
        return jax.jit(function).trace(*structs).lower(lowering_platforms=("tpu",)).compile()


if __name__ == "__main__":
    main()
