"""Static roofline of recurrent layers on a TPU, in XLA and in this project's kernels: nothing is run, nothing is measured.

`python -m benchmarks.recurrences --target v5e v6e` prints JSON. The floor of a decode step is reading and writing each row's
state once at the published bandwidth; of a prompt the larger of its operations at the published peak (chunks as the kernel has
them, each product once, in bfloat16) and its bytes: tokens in and out, and the state. XLA's cycles are its own estimates, those
of the loop over chunks times as many as there are; another loop, whose passes nobody knows, counts once. A kernel's are the
bundles of its loops times their passes, or what its copies take where that is more: a bound, as in `benchmarks/kernels.py`.

Thousands of cycles a layer on v6e (libtpu 0.0.42.1), and shares of the floor. "Before" is the last commit in which layers
gathered states, its ops in XLA and the states of 36 layers in one array.

| | floor | before | kernels |
|---|---|---|---|
| Qwen3-Next-80B-A3B, decode, 8 rows | 36 | 177 (20%) | 48 (75%) |
| 64 rows | 286 | 1,071 (27%), 269 MB of copies | 313 (92%) |
| a prompt of 2,048 tokens | 76 | 5,488 (1.4%) | 698 (11%), of which 275 are XLA's around the kernel |
| Granite-4-H-small, decode, 8 rows | 72 | 163 (44%) | 86 (83%) |
| 64 rows | 573 | 839 (68%), 806 MB of copies | 600 (95%) |
| a prompt of 2,048 tokens | 118 | 2,229 (5%) | 850 (14%), of which 452 are XLA's |
| Kimi-Linear-48B-A3B, decode, 64 rows | 286 | | 393 (73%), by XLA 1,510 |
| a prompt of 2,048 tokens | 94 | | 1,773 (5%), of which 723 are XLA's; by XLA 14,626 |

On v5e the kernels take, in this order, 72 (85%), 519 (95%), 766 (17%), 136 (90%), 1,015 (97%) and 896 (22%),
527 (93%) and 2,056 (8%).

What is left in prompts: the tokens of a delta rule are solved for one after the other in blocks of 16, for which numbers are
spread over lanes and sublanes (the units that do it are busy in 68% of the cycles, matrix units in 35%); and tokens are laid out
anew as float32, channels below one another, in and out.

On a CPU rows of one token go one after the other (`pallas_kernels/gated_delta/cpu.py`). Milliseconds of a layer of 32 heads of
128 by 128 on two shared cores of an EPYC, without other rows (jax 0.10.2): 0.4 for one row, 3.1 for 8, 13 for 32; all rows at
once 2.2, 20 and 79.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxengine.bench import machine
from pallas_kernels import gated_delta, selective_scan
from pallas_kernels.check import devices
from pallas_kernels.gated_delta import xla as delta_xla
from pallas_kernels.selective_scan import xla as scan_xla
from pallas_kernels.tpu.recurrence import chunk as tpu_chunk
from pallas_kernels.tpu.recurrence import decays as tpu_decays
from pallas_kernels.tpu.recurrence import single as tpu_single
from xla_cache.chips import CHIPS, Chip
from xla_cache.cycles import CYCLES, UNKNOWN
from xla_cache.schedules.bundles import Loop, Schedule, dump_flags, read

BACKENDS = ("xla", "tpu")
DECODE_ROWS = (8, 64)
PROMPT = 2048
SLOTS = 65
LANES = 128


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A published model's recurrent layer: `keys` heads of keys or groups of `state` numbers, `heads` of `size` channels."""

    keys: int
    heads: int
    size: int
    state: int
    learns: bool
    by_channel: bool = False

    @property
    def tiles(self) -> int:
        return self.heads * self.size // LANES

    @property
    def xla_chunk(self) -> int:
        """Tokens of a chunk in XLA."""
        if not self.learns:
            return scan_xla.CHUNK
        return delta_xla.CHUNK_BY_CHANNEL if self.by_channel else delta_xla.CHUNK

    @property
    def state_bytes(self) -> int:
        return self.heads * self.size * self.state * 4

    def arguments(self, rows: int, places: int) -> dict[str, tuple[tuple[int, ...], Any]]:
        """Of the op."""
        shared = ((places, self.keys, self.state), jnp.bfloat16)
        values = ((places, self.heads, self.size), jnp.bfloat16)
        by_head = ((places, self.heads), jnp.float32)
        of_rows = {"slots": ((rows,), jnp.int32), "starts": ((rows,), jnp.int32), "offsets": ((rows + 1,), jnp.int32)}
        if self.learns:
            decays = ((places, self.heads, self.state), jnp.float32) if self.by_channel else by_head
            return {"q": shared, "k": shared, "v": values, "decays": decays, "rates": by_head, **of_rows}
        rates = ((self.heads,), jnp.float32)
        return {"x": values, "steps": by_head, "rates": rates, "inward": shared, "outward": shared, **of_rows}

    def operations(self, tokens: int) -> int:
        """Of a prompt's products, in chunks of the kernel's."""
        chunk = tpu_decays.CHUNK
        products_with_state = 3 if self.learns else 2
        of_channel = 2 * (products_with_state * self.state + chunk * (2 if self.learns else 1))
        of_key = 2 * self.state * chunk * (2 if self.learns else 1)
        return tokens * (self.heads * self.size * of_channel + self.keys * of_key)

    def token_bytes(self) -> int:
        """Queries, keys and values of a token in bfloat16, its result in float32."""
        return 2 * 2 * self.keys * self.state + (2 + 4) * self.heads * self.size


LAYERS = {
    "Qwen3-Next-80B-A3B": Layer(keys=16, heads=32, size=128, state=128, learns=True),
    "Granite-4-H-small": Layer(keys=1, heads=128, size=64, state=128, learns=False),
    "Kimi-Linear-48B-A3B": Layer(keys=32, heads=32, size=128, state=128, learns=True, by_channel=True),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", nargs="+", default=["v5e", "v6e"], choices=["v4", "v5e", "v5p", "v6e", "tpu7x"])
    parser.add_argument("--model", nargs="+", default=list(LAYERS), choices=list(LAYERS))
    parser.add_argument("--backend", nargs="+", default=list(BACKENDS), choices=list(BACKENDS))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LIBTPU_INIT_ARGS"] = dump_flags(
            Path(folder)
        )  # read when the compiler is loaded, by the first target
        jax.config.update("jax_platforms", "cpu")
        results = {
            target: {model: report(target, LAYERS[model], Path(folder), options.backend) for model in options.model}
            for target in options.target
        }
    print(json.dumps({"kind": "static estimate", "machine": machine.describe(), "targets": results}, indent=2))


def report(target: str, layer: Layer, folder: Path, backends: Sequence[str] = BACKENDS) -> dict[str, Any]:
    """Decode steps and a prompt of one layer on one chip."""
    steps = {f"decode {rows}": (rows, rows) for rows in DECODE_ROWS} | {f"prompt {PROMPT}": (1, PROMPT)}
    return {name: _step(target, layer, folder, *step, backends) for name, step in steps.items()}


def _step(target: str, layer: Layer, folder: Path, rows: int, places: int, backends: Sequence[str]) -> dict[str, Any]:
    chip = CHIPS[target]
    prompt = places > rows
    moved = 2 * rows * layer.state_bytes + (places * layer.token_bytes() if prompt else 0)
    operations = layer.operations(places) if prompt else 0
    floor = max(_cycles(chip, moved), operations / chip.matrix_flops * chip.clock_hz)
    result: dict[str, Any] = {"floor_kilocycles": round(floor / 1e3, 1)}
    for backend in backends:
        compiled = _compile(target, layer, rows, places, backend)
        in_xla = prompt and backend == "xla"
        taken = around = _xla_cycles(compiled, places // layer.xla_chunk if in_xla else 0)
        if backend == "tpu" and not prompt:
            taken += _decode_cycles(chip, layer, read(folder, "rows_of_one_token"), rows)
        elif backend == "tpu":
            taken += _prompt_cycles(chip, layer, read(folder, "longer_rows"), places)
        result[backend] = {
            "kilocycles": round(taken / 1e3, 1),
            "of_which_xla": round(around / 1e3, 1),
            "share": round(floor / taken, 3),
            "temporary_mb": round(compiled.memory_analysis().temp_size_in_bytes / 1e6, 1),
        }
    return result


def _cycles(chip: Chip, count: float) -> float:
    """That so many bytes take."""
    return count / chip.memory_bandwidth * chip.clock_hz


def _decode_cycles(chip: Chip, layer: Layer, schedule: Schedule, rows: int) -> float:
    """Rows of blocks of keys of tiles; the states' copies run beside."""
    block = tpu_single.block_tiles(layer.tiles, layer.keys, layer.state)
    blocks, of_key = layer.tiles // block, min(block, layer.tiles // layer.keys)
    of_rows = max(schedule.root.inner, key=_bundles)
    of_blocks = max(of_rows.inner, key=_bundles)
    computed = _passes(of_blocks, [block // of_key, of_key / tpu_single.TOGETHER])
    copied = _cycles(chip, 2 * block * layer.state * LANES * 4)
    return rows * (_passes(of_rows, []) - _bundles(of_blocks) + blocks * max(computed, copied))


def _prompt_cycles(chip: Chip, layer: Layer, schedule: Schedule, places: int) -> float:
    """Chunks of keys of tiles; the tokens' copies, in float32, run beside."""
    size = tpu_decays.CHUNK
    of_chunks = max(max(schedule.root.inner, key=_bundles).inner, key=_bundles)
    keys, tiles = tpu_chunk.together(layer.keys, layer.tiles, by_channel=layer.by_channel)
    computed = _passes(of_chunks, [layer.keys / keys, layer.tiles // layer.keys / tiles])
    copied = _cycles(chip, 4 * size * 2 * (layer.keys * layer.state + layer.heads * layer.size))
    return places / size * max(computed, copied) + _cycles(chip, 2 * layer.state_bytes)


def _bundles(loop: Loop) -> int:
    return loop.end - loop.start


def _passes(loop: Loop, inner: list[float]) -> float:
    """Bundles of a pass, the largest loop inside taken so often; its others are for what is rare and count once."""
    inner = [passes for passes in inner if passes != 1]  # no loop
    if not inner or not loop.inner:
        return _bundles(loop)
    largest = max(loop.inner, key=_bundles)
    return _bundles(loop) - _bundles(largest) + inner[0] * _passes(largest, inner[1:])


def _xla_cycles(compiled: Any, chunks: int) -> float:
    """Of XLA's instructions, those of the longest loop times `chunks`."""
    found: dict[str, int] = {}
    computation, entry = "", ""
    for line in compiled.as_text().splitlines():
        header = re.match(r"^(ENTRY )?%?([\w.\-]+) .*\{$", line)
        if header:
            computation = header[2]
            entry = computation if header[1] else entry
        counts = [int(count) for count in CYCLES.findall(line) if int(count) < UNKNOWN]
        found[computation] = found.get(computation, 0) + sum(counts)
    loops = sorted((count for name, count in found.items() if name != entry), reverse=True)
    return found.get(entry, 0) + (chunks * loops[0] + sum(loops[1:]) if loops else 0)


def _compile(target: str, layer: Layer, rows: int, places: int, backend: str) -> Any:
    """The op of one of two layers, on the states of both; tokens are `[N, channels]` around it, as products have them."""
    mesh = Mesh(np.asarray(devices(target, 1)), ("tensor",))
    whole = NamedSharding(mesh, PartitionSpec())
    op = gated_delta if layer.learns else selective_scan
    pool = (2 * SLOTS, layer.tiles, layer.state, LANES)
    given = layer.arguments(rows, places)

    def call(states: Any, *arrays: Any) -> Any:
        named = {name: array.reshape(given[name][0]) for name, array in zip(given, arrays, strict=True)}
        out, states = op(states=states, backend=backend, **named)
        return out.reshape(places, -1), states

    flat = [((shape[0], math.prod(shape[1:])) if len(shape) == 3 else shape, dtype) for shape, dtype in given.values()]
    structs = [jax.ShapeDtypeStruct(*shape, sharding=whole) for shape in ((pool, jnp.float32), *flat)]
    with jax.set_mesh(mesh):
        return jax.jit(call, donate_argnums=0).trace(*structs).lower(lowering_platforms=("tpu",)).compile()


if __name__ == "__main__":
    main()
