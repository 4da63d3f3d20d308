"""Static roofline of latent attention on a TPU, from the real compiler's schedule: nothing is run, nothing is measured.

`python -m benchmarks.latents --target v6e v5p tpu7x` prints JSON, for DeepSeek-V3's vectors (576 numbers, in pages 640, of which
512 are the value) with all 128 heads on a device and with 16, a device's share of eight. What is read and what is computed is
said in `benchmarks/kernels.py`. The bound of a decoding row is the longer of reading its vectors and of computing with them; of a
prompt's tile it is computing. How copies and the computing of blocks overlap is simulated: a block's copy begins when the block
before it is taken up, and computing waits for it. Queries and results are left out of the bytes: XLA keeps those of a decode step
in VMEM.

`times_as_fast_as_xla` compares with XLA's own form by the compiler's estimates, the body of each loop times how often it runs.

Found with libtpu 0.0.42, share of the bound at 1,024 and at 8,192 positions (compared with XLA's form at 8,192):

| | v6e | v5p | tpu7x |
|---|---|---|---|
| decode, 128 heads | 72, 99% (25 times as fast) | 78, 84% (48) | 49, 68% (35) |
| decode, 16 heads | 100, 100% (22) | 100, 100% (63) | 69, 99% (45) |
| prompts, 128 heads | 58, 63% (125) | 88, 92% (155) | 69, 73% (158) |
| prompts, 16 heads | 56, 62% (125) | 86, 91% (155) | 67, 73% (157) |

Units of 256 x 256 take 576 numbers as 768, so that v6e and tpu7x could reach 85% in prompts. In decode with all heads on a chip
the products and weights of one block follow each other, and the scalar code that starts its copies comes before them: tpu7x, with
twice v6e's bandwidth, waits for both. A context that ends soon behind a block's begin computes half a block at least: 70, 74 and
47% at 1,500 positions.

What XLA computes around the kernel is not in the table. A layer that decodes 64 rows with 128 heads on v6e takes 65 thousand
cycles to make queries of 640 numbers by token out of products by head, where the kernel takes 124 thousand at 1,024 positions; a
prompt's 2,048 tokens 4.7 million, where the kernel takes 1.9 million. Another layout of the products was 12% better at the most.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.kernels import compile_for, cores_of, mesh_of, units_busy
from jaxengine.bench import machine
from pallas_kernels import latent_attention, latent_page_shape
from pallas_kernels.latent_attention import tpu
from pallas_kernels.latent_attention.tpu_blocks import places_at_once
from pallas_kernels.paged_attention.tiles import tile_lengths
from pallas_kernels.paged_attention.xla import BLOCK_TOKENS, MAX_TOGETHER, TOGETHER_BYTES
from pallas_kernels.tpu.attention.blocks import Blocks
from pallas_kernels.tpu.chip import target_chip
from xla_cache.chips import CHIPS
from xla_cache.cycles import CYCLES, UNKNOWN, estimated_cycles
from xla_cache.schedules.bundles import Loop, Schedule, dump_flags, read

SIZE, VALUE_SIZE = 576, 512
HEADS = (128, 16)
PAGE_TOKENS, PAGES, PAGES_PER_ROW, ROWS = 64, 4096, 128, 64
CONTEXTS = (1024, 1500, 8192)
STEPS = {"decode": 64, "prompts": 2048}
STEADY = 6
"""Rows after which one takes as long as the next."""


@dataclass(frozen=True)
class Cut:
    """Bundles of a cut of the kernel.

    `tile` and `block` are what is around the loops inside them; `halves` computes half a block and all of it (of many queries it
    is empty); `parts` is a pass over some of a tile's queries with masks and without (of few queries it is empty).
    """

    tile: int
    block: int
    halves: tuple[int, ...]
    parts: tuple[int, ...]
    computing: tuple[int, int]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", nargs="+", default=["v6e"], choices=["v4", "v5e", "v5p", "v6e", "tpu7x"])
    options = parser.parse_args()
    # In a process of its own: to dump the many parts of XLA's form takes minutes, and is of no use.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        of_xla = {target: process.submit(xla_loops, target).result() for target in options.target}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LIBTPU_INIT_ARGS"] = dump_flags(Path(folder))
        jax.config.update("jax_platforms", "cpu")
        results = {target: report(target, Path(folder), of_xla[target]) for target in options.target}
    print(json.dumps({"kind": "static estimate", "machine": machine.describe(), "targets": results}, indent=2))


def xla_loops(target: str) -> dict[str, list[tuple[int, int]]]:
    """By name of the case, what `_loops` finds in XLA's form."""
    jax.config.update("jax_platforms", "cpu")
    return {
        _name(heads, step): _loops(compile_for(target, lambda *arrays: _attend(arrays, "xla"), _shapes(heads, tokens)))
        for heads in HEADS
        for step, tokens in STEPS.items()
    }


def report(target: str, folder: Path, of_xla: dict[str, list[tuple[int, int]]]) -> dict[str, Any]:
    """Decode and prompts for one chip."""
    found: dict[str, Any] = {}
    for heads in HEADS:
        for step, tokens in STEPS.items():
            shapes, decode = _shapes(heads, tokens), step == "decode"
            compiled = compile_for(target, lambda *arrays: _attend(arrays, "tpu"), shapes)
            schedule = read(folder, "latent_attention")
            cut, blocks = list(zip(_cuts(schedule), _blocks(target, shapes), strict=True))[0 if decode else -1]
            cycles = {context: cycles_of(target, cores_of(target), heads, blocks, cut, context) for context in CONTEXTS}
            loops = of_xla[_name(heads, step)]
            faster = {
                context: _xla_cycles(loops, heads, tokens, context, decode=decode) * blocks.places / (tokens * taken)
                for context, taken in cycles.items()
            }
            found[_name(heads, step)] = {
                "queries_x_tokens": [blocks.places * heads, blocks.pages * PAGE_TOKENS],
                "bundles": {name: getattr(cut, name) for name in ("tile", "block", "halves", "parts")},
                "units_busy": units_busy(schedule, *cut.computing),
                "scheduling_cycles": estimated_cycles(compiled),
                "share_of_bound_by_context": {
                    context: round(_bound(target, heads, blocks, context) / taken, 3)
                    for context, taken in cycles.items()
                },
                "times_as_fast_as_xla": {context: round(ratio, 1) for context, ratio in faster.items()},
            }
    return found


def _name(heads: int, step: str) -> str:
    return f"{step}, {heads} heads"


def _bound(target: str, heads: int, blocks: Blocks, context: int) -> float:
    """Cycles that a tile at the end of a context takes at least."""
    chip = CHIPS[target]
    seen = context - (blocks.places - 1) / 2
    operations = 2 * blocks.places * heads * seen * (SIZE + VALUE_SIZE) / chip.matrix_flops
    bytes_read = context * _vector_bytes() / chip.memory_bandwidth
    return max(operations, bytes_read) * chip.clock_hz


def cycles_of(target: str, cores: int, heads: int, blocks: Blocks, cut: Cut, context: int) -> float:
    """Of a device for a tile that ends at `context`, one of many equal ones. Its cores share the tiles and the bandwidth.

    No block is computed in less than the published peak allows, which the bundles of a v5p would.
    """
    chip, block_tokens = CHIPS[target], blocks.pages * PAGE_TOKENS
    vector_bytes = _vector_bytes()
    per_token = vector_bytes / chip.memory_bandwidth * chip.clock_hz * cores
    least = 2 * blocks.places * heads * (vector_bytes // 2 + VALUE_SIZE) / chip.matrix_flops * chip.clock_hz * cores
    work = []
    for begin in range(0, context, block_tokens):
        tokens = min(block_tokens, context - begin)
        computed = block_tokens
        if blocks.few:
            half = 2 * tokens <= block_tokens
            computing = cut.halves[0 if half else -1]
            computed //= 1 + half
        else:
            masked = begin + block_tokens > context - blocks.places + 1
            computing = blocks.places // (2 * places_at_once(heads)) * cut.parts[0 if masked else 1]
        copied = -(-tokens // PAGE_TOKENS) * PAGE_TOKENS * per_token
        work.append((copied, cut.block + max(computing, computed * least)))
    ends, clock, arrived = [0.0], 0.0, work[0][0]
    for _ in range(STEADY):
        for at, (_, computing) in enumerate(work):
            taken_up, following = clock, work[(at + 1) % len(work)][0]
            clock = max(clock, arrived) + computing
            arrived = max(arrived, taken_up) + following
        clock += cut.tile
        ends.append(clock)
    return (ends[-1] - ends[-2]) / cores


def _cuts(schedule: Schedule) -> list[Cut]:
    """The cuts of a kernel in order: each has a loop over tiles with one over blocks, which has products."""

    def products(loop: Loop) -> bool:
        return bool(schedule.work(loop.start, loop.end)["MXU"])

    cuts = []
    for tile in filter(products, schedule.root.inner):
        (block,) = filter(products, tile.inner)
        straight = schedule.straight(block)
        computing = [piece for piece in straight if schedule.work(*piece)["MXU"]]
        parts = [loop for loop in block.inner if products(loop)]
        around = sum(end - start for start, end in straight if (start, end) not in computing)
        longest = (parts[-1].start, parts[-1].end) if parts else max(computing, key=lambda piece: piece[1] - piece[0])
        cuts.append(
            Cut(
                tile=sum(end - start for start, end in schedule.straight(tile)),
                block=around,
                halves=tuple(sorted(end - start for start, end in computing)),
                parts=tuple(loop.end - loop.start for loop in parts),
                computing=longest,
            )
        )
    return cuts


def _loops(compiled: Any) -> list[tuple[int, int]]:
    """Estimated cycles of a pass of each loop over tiles, and of one of the loop over blocks inside it."""
    hlo = compiled.as_text()
    bodies: dict[str, tuple[int, list[str]]] = {}
    for name, text in re.findall(r"^(?:ENTRY )?%?([\w.\-]+) \(.*?\{$(.*?)^\}", hlo, re.DOTALL | re.MULTILINE):
        cycles = sum(count for count in map(int, CYCLES.findall(text)) if count < UNKNOWN)
        bodies[name] = cycles, re.findall(r" while\(.*?body=%?([\w.\-]+)", text)
    outer = [(cycles, inner) for cycles, inner in bodies.values() if len(inner) == 1 and not bodies[inner[0]][1]]
    return [(cycles, bodies[inner[0]][0]) for cycles, inner in outer]


def _xla_cycles(loops: list[tuple[int, int]], heads: int, tokens: int, context: int, *, decode: bool) -> float:
    """What XLA's form takes for `tokens` places: of rows that decode, or of prompts' tiles that end at `context`."""
    lengths = tile_lengths(tokens, heads)
    assert len(loops) == len(lengths)
    block_bytes = BLOCK_TOKENS * _vector_bytes()
    at_once = min(MAX_TOGETHER, TOGETHER_BYTES // block_bytes, ROWS) if decode else lengths[1]
    tile, block = loops[0 if decode else 1]
    return -(-tokens // at_once) * (tile + -(-context // BLOCK_TOKENS) * block)


def _vector_bytes() -> int:
    return latent_page_shape(PAGE_TOKENS, SIZE, platform="tpu")[-1] * 2


def _shapes(heads: int, tokens: int) -> list[tuple[tuple[int, ...], Any]]:
    pages = (PAGES, *latent_page_shape(PAGE_TOKENS, SIZE, platform="tpu"))
    rows = [((ROWS, PAGES_PER_ROW), jnp.int32), ((ROWS + 1,), jnp.int32), ((ROWS,), jnp.int32)]
    return [((tokens, heads, SIZE), jnp.bfloat16), (pages, jnp.bfloat16), *rows]


def _attend(arrays: tuple[Any, ...], backend: str) -> Any:
    return latent_attention(*arrays, scale=0.1, value_size=VALUE_SIZE, backend=backend)


def _blocks(target: str, shapes: list[tuple[tuple[int, ...], Any]]) -> tuple[Blocks, ...]:
    with jax.set_mesh(mesh_of(target)):
        chip = target_chip()
        assert chip is not None
        q, pages = (jax.ShapeDtypeStruct(*shape) for shape in shapes[:2])
        cuts = tpu.blocks_for(chip, q, pages, VALUE_SIZE)
        assert cuts is not None
        return cuts


if __name__ == "__main__":
    main()
