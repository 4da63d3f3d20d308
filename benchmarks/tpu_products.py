"""A layer's products on TPUs by how its matrices are kept, from the compiler's own figures: no TPU, nothing is run. JSON out.

Thousands of cycles of all products of one layer, attention and norms left out, each compiled by itself. Of XLA: the sum of
its estimates. Kernels of Pallas: bundles of the final schedule, once for each block. A product takes no less than reading its
matrix, since neither figure counts waiting for that. `beside_kernels` is XLA's part where there is a kernel: rounding its float32
results to bfloat16 in a pass of its own, which in a model is part of what comes next. `bound` is the larger one of reading and of
multiplying at the chip's peak.
`experts`: the three products of gpt-oss-20b's 32 experts, of which each token takes 4, all of them read.

    python -m benchmarks.tpu_products --target v5e v6e tpu7x --rows 8 64 256 2048
    python -m benchmarks.tpu_products --experts --target v5e v6e tpu7x --rows 32

Experts in MXFP4, the 32 of gpt-oss-20b, `[2880, 2880]`, and 32 rows (libtpu 0.0.42.1), thousands of cycles on v6e: by XLA's
loop over blocks 1.2 million, by Pallas 648 (`pallas_kernels/grouped_scaled_matmul/tpu.py`), and 372 in int4 with the same
groups, of which 50 are XLA's around the kernel. Reading them takes 159, and 567 in bfloat16. Since numbers go by way of
float8_e5m2 (not run again): 256 outputs of 2,880 inputs take 783 bundles and not 1,150, with 8.1 vector instructions and not
12.1 to 2,048 numbers, the loop's all counted; both are bound by that unit. Products by groups are since told by the schedules of
all their instructions, as in `tpu_steps`, the moves of rows among them: in MXFP4 354 and in int4 240 since few rows stay in VMEM.

4 bits, `[14336, 4096]` with groups of 128, from the compiler's final schedule on v6e (libtpu 0.0.42.1), beside XLA's estimates
(`pallas_kernels/scaled_matmul`, `tpu.py` and `spread.py`). Reading takes 31, of bfloat16 125. Those of 8 and 128 rows, and of the
other chips, are an earlier form's, which had one operation less for each number:

    rows                 8     64    128    256   2,048
    `tpu`               28     50     72    117     553
    `spread`                  164                 2,888
    bfloat16                  160                   524

On v5e it is 56 at 8 rows, 69 at 64 and 125 at 128 (reading: 54), on tpu7x 28, 52 and 71 (18). A layer of Llama-3.1-8B in float8
takes XLA 334 at 8 rows and 337 at 64 on tpu7x, where it writes the matrix as bfloat16 first, and the kernel 134 and 151.

Forms of it in XLA, by the compiler's estimates (31 is what reading takes; as bfloat16 it takes 160, and 524 with 2,048 rows):

    rows                                64   2,048
    broadcast                        1,390   2,390
    a product per group                568   5,945
    spread by a product                164   2,888
    the same of JAX's int4             134   1,625
    one group of all inputs             99   1,474
    the same of JAX's int4              44     570

Zeros inside of the matrix make it 577 at 64 rows.

A zero for each group, the same matrix by `tpu` at 8 and 64 rows and with what XLA does beside it: without zeros 32.0 and 58.7
(3.0 and 9.1 of it beside), taken off by XLA 40.7 and 66.5 (11.7, 16.9), within the kernel 37.3 and 65.1 (5.4, 12.2). Of what is
beside, 2.4 are sums of each group's inputs, which products of the same rows share; summed in the kernel, block by block, all take
36.1 and 76.8. The kernel's product is of two parts of bfloat16 each: in float32 it takes 1.1 and 7.6 more. Beside more than 128
rows XLA takes them off as it rounds results.

Groups of 32 with scales and zeros in bytes, whose numbers are scaled beside any rows, take 128.4 at 64 rows, 21.2 of it XLA's,
and int4 with zeros 65.1, 12.2 of it. Until blocks of such groups were counted as the kernel cuts them this said 450.

float8 by float8 (`pallas_kernels/scaled_matmul/tpu_float8.py`), `[14336, 4096]` with a scale for each output, rounding of rows
and results included, by the compiler's estimates (libtpu 0.0.42.1):

                                 tpu7x                   v6e
    rows                     8     64  2,048       8     64  2,048
    bfloat16               103    112    497     151    162    525
    float8 by float8        55     67    351      46     51    669
    rows left as they are   89     92    496      40     42    612
    int8, rows rounded      97    102    652      42     51    543
    reading 8 bits          35                    63

int8 by int8 (`pallas_kernels/matmul/tpu_int8.py`): all products of a layer of Llama-3.1-8B (libtpu 0.0.42.1; rounding included,
each product by itself, and what copies take where that is more), beside XLA's estimates:

                             v6e            v5e
    rows                 256  2,048     256  2,048
    Pallas               321  1,094     537  3,601
    XLA                  454  2,787     789  5,862
    bfloat16             645  2,052     945  7,221
    at the chip's peak   233    852     426  3,410

For 2,048 rows on four devices, in a layer of the same model: rounding 42 on v6e and 48 on v5e, products 236 and 852, at the peak
213 and 852. Where XLA cuts them each device rounds all rows, which its estimates have at 224 and 476 for the two inputs of a
layer that are gathered.
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
from tqdm import tqdm

from benchmarks.filling import Filling, Rows
from buckets import Bucket
from jaxengine.bench import machine
from pallas_kernels import grouped_matmul, grouped_scaled_matmul, matmul, scaled_matmul
from pallas_kernels.check import devices
from pallas_kernels.matmul import tpu_int8
from pallas_kernels.scaled_matmul import tpu
from pallas_kernels.tpu.chip import target_chip
from xla_cache.chips import CHIPS, Chip
from xla_cache.cycles import estimated_cycles
from xla_cache.schedules.account import account
from xla_cache.schedules.account import read as read_texts
from xla_cache.schedules.bundles import Loop, Schedule, dump_flags, read

LAYER = (((4096, 4096), 2), ((1024, 4096), 2), ((14336, 4096), 2), ((4096, 14336), 1))
"""Outputs and inputs of Llama-3.1-8B's matrices, and how many there are."""
EXPERTS, CHOSEN, EXPERT = 32, 4, (2880, 2880)
FLOAT = jnp.dtype(jnp.bfloat16)


@dataclass(frozen=True)
class Form:
    """How matrices are kept: bits of a number, `group` inputs with one scale or all of them, whether rows are rounded to int8.

    `in_bytes`: scales and zeros are.
    """

    dtype: Any
    bits: int
    group: int | None = None
    rounded: bool = False
    pairs: str = "int4"
    zeros: bool = False
    in_bytes: bool = False

    def factors(self, *shape: int) -> list[tuple[tuple[int, ...], Any]]:
        """Shapes and types of scales and zeros."""
        if self.group is None:
            return [(shape, jnp.float32)]
        types = (jnp.uint8, jnp.int8) if self.in_bytes else (FLOAT, FLOAT)
        return [(shape, dtype) for dtype in types[: 1 + self.zeros]]

    def groups(self, inputs: int) -> int:
        return inputs // (self.group or inputs)

    @property
    def numbers_to_a_byte(self) -> int:
        return 8 // self.bits if self.bits < 8 else 1


FORMS = {
    "bfloat16": Form(jnp.bfloat16, 16),
    "int8 W8A8": Form(jnp.int8, 8, rounded=True),
    "int8 weights": Form(jnp.int8, 8),
    "fp8": Form(jnp.float8_e4m3fn, 8),
    "fp8, groups": Form(jnp.float8_e4m3fn, 8, group=128),
    "int4": Form(jnp.uint8, 4, group=128),
    "int4, zeros": Form(jnp.uint8, 4, group=128, zeros=True),
    "int4, 32, zeros": Form(jnp.uint8, 4, group=32, zeros=True),
    "int4, 32, bytes": Form(jnp.uint8, 4, group=32, zeros=True, in_bytes=True),
}
EXPERT_FORMS = {
    "bfloat16": Form(jnp.bfloat16, 16),
    "int8 W8A8": Form(jnp.int8, 8, rounded=True),
    "int4": Form(jnp.uint8, 4, group=32),
    "int4, zeros": Form(jnp.uint8, 4, group=32, zeros=True),
    "int4, bytes": Form(jnp.uint8, 4, group=32, zeros=True, in_bytes=True),
    "mxfp4": Form(jnp.uint8, 4, group=32, pairs="float4_e2m1fn"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", nargs="+", default=["v5e", "v6e", "tpu7x"], choices=["v5e", "v5p", "v6e", "tpu7x"])
    parser.add_argument("--rows", nargs="+", type=int, default=[8, 64, 256, 2048])
    parser.add_argument("--forms", nargs="+", choices=[*FORMS, *(EXPERT_FORMS.keys() - FORMS.keys())])
    parser.add_argument("--experts", action="store_true")
    options = parser.parse_args()
    forms = EXPERT_FORMS if options.experts else FORMS
    measure = experts if options.experts else layer
    with tempfile.TemporaryDirectory() as folder:
        # read when the compiler is loaded, by the first target
        os.environ["LIBTPU_INIT_ARGS"] = dump_flags(Path(folder))
        jax.config.update("jax_platforms", "cpu")
        cases = [(target, rows, name) for target in options.target for rows in options.rows for name in forms]
        found = [
            {"target": target, "rows": rows, "form": name, **measure(target, rows, forms[name], Path(folder))}
            for target, rows, name in tqdm(cases)
            if options.forms is None or name in options.forms
        ]
    print(json.dumps({"kind": "static estimate", "machine": machine.describe(), "results": found}, indent=1))


def layer(target: str, rows: int, form: Form, folder: Path) -> dict[str, float]:
    """All products of a layer of Llama-3.1-8B."""
    taken = bound = beside = 0.0
    for shape, count in LAYER:
        floor = Floor(CHIPS[target], rows, shape, form)
        function, structs = _dense(rows, shape, form)
        cycles, of_xla = _cycles(target, folder, function, structs)
        taken += count * max(cycles, floor.reading)
        beside += count * of_xla
        bound += count * max(floor.reading, floor.multiplying)
    return {
        "kilocycles": round(taken / 1e3, 1),
        "beside_kernels": round(beside / 1e3, 1),
        "bound": round(bound / 1e3, 1),
    }


def experts(target: str, rows: int, form: Form, folder: Path) -> dict[str, float]:
    """The gate, up and down products of all experts."""
    floor = Floor(CHIPS[target], rows * CHOSEN / EXPERTS, EXPERT, form)
    function, structs = _grouped(rows, form)
    cycles = (
        _scheduled(target, folder, function, structs) if form.grouped else _cycles(target, folder, function, structs)[0]
    )
    reading, bound = 3 * EXPERTS * floor.reading, 3 * EXPERTS * max(floor.reading, floor.multiplying)
    return {"kilocycles": round(max(3 * cycles, reading) / 1e3, 1), "bound": round(bound / 1e3, 1)}


@dataclass(frozen=True)
class Floor:
    """What a product of `rows` with a matrix takes at the least, in cycles."""

    chip: Chip
    rows: float
    shape: tuple[int, int]
    form: Form

    @property
    def reading(self) -> float:
        outputs, inputs = self.shape
        factors = sum(
            math.prod(of) * jnp.dtype(dtype).itemsize
            for of, dtype in self.form.factors(self.form.groups(inputs), outputs)
        )
        kept = outputs * inputs * self.form.bits / 8 + factors
        return kept / self.chip.memory_bandwidth * self.chip.clock_hz

    @property
    def multiplying(self) -> float:
        outputs, inputs = self.shape
        peak = self.chip.int8_ops if self.form.rounded else self.chip.matrix_flops
        return 2 * self.rows * outputs * inputs / peak * self.chip.clock_hz


def _dense(rows: int, shape: tuple[int, int], form: Form) -> tuple[Callable[..., Any], list[tuple[Any, Any]]]:
    outputs, inputs = shape
    given = [((rows, inputs), FLOAT), ((outputs // form.numbers_to_a_byte, inputs), form.dtype)]
    if form.bits == 16:
        return lambda x, weight: matmul(x, weight, platform="tpu").astype(FLOAT), given
    if form.rounded:
        given.append(((outputs,), jnp.float32))
        return lambda x, weight, scales: matmul(x, weight, scales=scales, platform="tpu").astype(FLOAT), given
    given += form.factors(form.groups(inputs), outputs)
    group = form.group or inputs

    def product(x: jax.Array, weight: jax.Array, *factors: jax.Array) -> jax.Array:
        found = scaled_matmul(x, weight, *factors, group=group, compute=FLOAT, pairs=form.pairs, platform="tpu")
        return found.astype(FLOAT)

    return product, given


def _grouped(rows: int, form: Form) -> tuple[Callable[..., Any], list[tuple[Any, Any]]]:
    outputs, inputs = EXPERT
    weights = ((EXPERTS, inputs // form.numbers_to_a_byte, outputs), form.dtype)
    given = [((rows, inputs), FLOAT), weights, ((EXPERTS,), jnp.int32), ((rows * CHOSEN,), jnp.int32)]
    shared = {"dtype": FLOAT, "platform": "tpu"}
    if form.group is None:
        if form.rounded:
            given.append(((EXPERTS, outputs), jnp.float32))
        return lambda x, weights, sizes, rows, scales=None: grouped_matmul(
            x, weights, sizes, rows=rows, scales=scales, **shared
        ), given
    given += form.factors(EXPERTS, form.groups(inputs), outputs)
    return lambda x, weights, sizes, rows, *factors: grouped_scaled_matmul(
        x, weights, sizes, *factors, group=form.group, compute=FLOAT, pairs=form.pairs, rows=rows, **shared
    ), given


def _compiled(
    target: str, folder: Path, function: Callable[..., Any], given: list[tuple[Any, Any]]
) -> tuple[jax.stages.Compiled, Any]:
    """A program, with its dump in `folder`, and the chip as kernels see it."""
    for dump in folder.iterdir():  # of a product before: those of a table are gigabytes
        dump.unlink()
    mesh = Mesh(np.asarray(devices(target, 1)), ("tensor",))
    whole = NamedSharding(mesh, PartitionSpec())
    structs = [jax.ShapeDtypeStruct(shape, dtype, sharding=whole) for shape, dtype in given]
    with jax.set_mesh(mesh):
        return jax.jit(function).trace(*structs).lower(lowering_platforms=("tpu",)).compile(), target_chip()


def _scheduled(target: str, folder: Path, function: Callable[..., Any], given: list[tuple[Any, Any]]) -> float:
    """All of a product by groups by its instructions' schedules, with as many experts touched as by chance."""
    chip, rows = CHIPS[target], given[0][0][0]
    filling = Filling(chip.name, Rows(Bucket(rows, 1), 1), (), pairs=rows * CHOSEN, experts=EXPERTS)
    compiled, _ = _compiled(target, folder, function, given)
    cycles: float = account(
        compiled.as_text() or "",
        read_texts(folder),
        operands=filling.operands,
        bytes_per_cycle=chip.memory_bandwidth / chip.clock_hz,
        flops_per_cycle=chip.matrix_flops / chip.clock_hz,
    )["cycles"]
    return cycles


def _cycles(
    target: str, folder: Path, function: Callable[..., Any], given: list[tuple[Any, Any]]
) -> tuple[float, float]:
    """Of all, and of XLA beside a kernel."""
    compiled, chip = _compiled(target, folder, function, given)
    cycles = estimated_cycles(compiled) or 0
    calls = [line for line in (compiled.as_text() or "").splitlines() if "tpu_custom_call" in line]
    if not calls:
        return cycles, 0.0
    assert chip is not None
    if any("int8_matmul" in line for line in calls):
        return cycles + _of_integers(folder, CHIPS[target], chip, given[0][0], given[1]), cycles
    schedule = read(folder, "scaled_matmul")
    loops = (loop for loop in schedule.root.walk() if loop.depth == 1)
    loop = max(loops, key=lambda loop: loop.end - loop.start, default=schedule.root)  # a single block has no loop
    groups, outputs = given[2][0]
    kernel = _of_blocks(schedule, loop, chip, rows=given[0][0][0], weight=given[1], outputs=outputs, groups=groups)
    return cycles + kernel, cycles


def _of_integers(folder: Path, published: Chip, chip: Any, x: tuple[int, int], weight: tuple[Any, Any]) -> float:
    """Rounding all rows, and the larger of multiplying and copying blocks."""
    (rows, inputs), outputs = x, weight[0][0]
    blocks = outputs // (tpu_int8.block_outputs(chip, jax.ShapeDtypeStruct(*weight)) or outputs)

    def bundles(kernel: str) -> int:
        schedule = read(folder, kernel)
        return max((loop.end - loop.start for loop in schedule.root.inner), default=schedule.root.end)

    rounding = bundles("quantise_rows") * -(-rows // tpu_int8.ROUNDED)
    multiplying = bundles("int8_matmul") * blocks * -(-rows // tpu_int8.ROWS)
    copied = outputs * inputs + blocks * rows * inputs + 2 * rows * outputs
    return rounding + max(multiplying, copied / published.memory_bandwidth * published.clock_hz)


def _of_blocks(
    schedule: Schedule, loop: Loop, chip: Any, *, rows: int, weight: tuple[Any, Any], outputs: int, groups: int
) -> float:
    """What is beside the first rows of a block of outputs happens once, its product for each block of rows."""
    few = tpu.few_rows(rows, groups, -(-weight[0][1] // groups))
    blocks = -(-outputs // tpu.block_outputs(chip, jax.ShapeDtypeStruct(*weight), outputs, few=few))
    whole = loop.end - loop.start
    if rows <= tpu.ROWS:
        return blocks * whole
    regions = [at for at in range(loop.start, loop.end) if "region" in schedule.text[at]]
    product = max(
        regions, key=lambda at: min(at - loop.start, loop.end - at)
    )  # where the longer half of the rest begins
    return blocks * (whole + (-(-rows // tpu.ROWS) - 1) * (loop.end - product))


if __name__ == "__main__":
    main()
