"""Products with matrices of 4, 8 and 16 bits on a GPU: do they agree, and how near to reading the matrix do they come? JSON out.

`python -m benchmarks.gpu_products` needs a GPU. Of matrices of Llama-3.1-8B, and with `--experts` of Qwen3-30B-A3B's 128 experts
of which a token takes 8: microseconds a call by the `gpu` backend and by `xla`, which makes the matrix dense at every call,
beside the floor, which is reading the touched bytes at the speed of a copy measured in the same run. Calls follow each other
inside one program, each with a matrix (or experts) of its own, so that neither launching nor the cache of the GPU counts.
`difference` is the largest between both backends, over the largest result.

`--tiles` tries candidates instead and prints the best for each case, `--seconds` ends a run early with what it has.
`--interpret` runs all of it at a tiny size in Pallas' interpret mode, on any machine, to try the script: times mean nothing then.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from contextvars import copy_context
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.gpu_attention import copy_speed
from benchmarks.gpu_report import gpu_or_trial, report
from pallas_kernels import grouped_matmul, grouped_scaled_matmul, matmul, scaled_matmul
from pallas_kernels.gpu.device import interpreted_gpu
from pallas_kernels.grouped_scaled_matmul import gpu as grouped_gpu
from pallas_kernels.scaled_matmul import gpu as dense_gpu


@dataclasses.dataclass(frozen=True)
class Kind:
    """How a matrix is kept: `group` inputs have a scale in common, 0: all of them; None: there are none."""

    dtype: Any
    group: int | None
    pairs: str = "int4"

    @property
    def bits(self) -> int:
        return 4 if self.dtype == jnp.uint8 else 8 * jnp.dtype(self.dtype).itemsize


KINDS = {
    "bf16": Kind(jnp.bfloat16, None),
    "w8a8": Kind(jnp.int8, None),
    "int4/128": Kind(jnp.uint8, 128),
    "int4/32": Kind(jnp.uint8, 32),
    "mxfp4": Kind(jnp.uint8, 32, "float4_e2m1fn"),
    "int8/128": Kind(jnp.int8, 128),
    "float8": Kind(jnp.float8_e4m3fn, 0),
    "float8/128": Kind(jnp.float8_e4m3fn, 128),
}
SHAPES = ("4096x6144", "4096x4096", "4096x28672", "14336x4096")
ROWS = (1, 8, 16, 64, 256, 2048)
EXPERT_SHAPES = ("2048x768", "768x2048")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sizes:
    """What surrounds what is timed. `uncached_bytes` of matrices are read before one is read again."""

    uncached_bytes: int = 200 << 20  # four times an H100's cache
    most_calls: int = 24
    copy_bytes: int = 2 << 30
    programs: int = 8
    samples: int = 5
    experts: int = 128
    chosen: int = 8


TINY = Sizes(uncached_bytes=1000, most_calls=2, copy_bytes=1 << 20, programs=1, samples=1, experts=4, chosen=2)


@dataclasses.dataclass(frozen=True)
class Case:
    """One product: `inputs x outputs`, so many rows, or tokens of experts."""

    inputs: int
    outputs: int
    kind: str
    rows: int
    experts: int = 0
    chosen: int = 1

    def describe(self) -> dict[str, Any]:
        of = {"experts": self.experts} if self.experts else {}
        return {"shape": f"{self.inputs}x{self.outputs}", "kind": self.kind, "rows": self.rows, **of}

    @property
    def matrix_bytes(self) -> int:
        """Of one matrix and its scales, bfloat16 each; those of `w8a8` are float32."""
        kind, numbers = KINDS[self.kind], self.inputs * self.outputs
        count = 0 if kind.group is None else -(-self.inputs // (kind.group or self.inputs))
        return numbers * kind.bits // 8 + 2 * count * self.outputs + (4 * self.outputs if self.kind == "w8a8" else 0)


class Made:
    """The arrays of a case: `x`, and for each call its own, of which `product` makes a result."""

    def __init__(self, case: Case, sizes: Sizes) -> None:
        self.case, self.kind = case, KINDS[case.kind]
        key = jax.random.key(0)
        self.x = jax.random.normal(key, (case.rows, case.inputs), jnp.bfloat16)
        touched = case.matrix_bytes * (min(case.experts, case.rows * case.chosen) if case.experts else 1)
        self.calls = max(1, min(sizes.most_calls, -(-sizes.uncached_bytes // touched)))
        if case.experts:
            matrices = _matrices(key, self.kind, (case.experts, case.inputs, case.outputs))
            self.shared, self.own = matrices, [self._chosen(number) for number in range(self.calls)]
        else:
            make = jax.jit(functools.partial(_matrices, kind=self.kind, shape=(case.outputs, case.inputs)))
            self.shared, self.own = (), [make(jax.random.fold_in(key, number)) for number in range(self.calls)]

    def _chosen(self, number: int) -> tuple[jax.Array, jax.Array]:
        """Sizes of experts and the rows that they take, of tokens that choose at random."""
        random, case = np.random.default_rng(number), self.case
        experts = np.concatenate([random.permutation(case.experts)[: case.chosen] for _ in range(case.rows)])
        order = np.argsort(experts, kind="stable")
        sizes = np.bincount(experts, minlength=case.experts)
        return jnp.asarray(sizes, jnp.int32), jnp.asarray(order // case.chosen, jnp.int32)

    def touched_bytes(self) -> float:
        """What a call reads at least, of matrices, rows and results."""
        case = self.case
        matrices = 1.0
        if case.experts:
            matrices = statistics.mean(int((np.asarray(sizes) > 0).sum()) for sizes, _ in self.own)
        rows = case.rows * case.chosen
        return (
            matrices * case.matrix_bytes
            + 2 * case.rows * case.inputs
            + (2 if case.experts else 4) * rows * case.outputs
        )

    def product(self, backend: str, tiles: Any, x: jax.Array, shared: Any, own: Any) -> jax.Array:
        """One call; with `tiles` of the kernel itself."""
        case, kind = self.case, self.kind
        options = {"group": kind.group or case.inputs, "pairs": kind.pairs}
        named = {"backend": backend, "platform": "gpu"}
        if case.experts:
            (matrices, scales), (sizes, rows) = shared, own
            if kind.group is None:
                scaled = {"scales": scales} if kind.dtype == jnp.int8 else {}
                return grouped_matmul(x, matrices, sizes, rows=rows, dtype=jnp.bfloat16, **scaled, **named)
            if tiles is None:
                options |= {"rows": rows, "compute": jnp.bfloat16, "dtype": jnp.bfloat16, **named}
                return grouped_scaled_matmul(x, matrices, sizes, scales, **options)
            return grouped_gpu.multiply(
                x, matrices, sizes, scales, None, rows, dtype=jnp.bfloat16, tiles=tiles, **options
            )
        matrix, scales = own
        if kind.group is None:
            scaled = {"scales": scales} if kind.dtype == jnp.int8 else {}
            return matmul(x, matrix, backend="auto" if backend == "gpu" else backend, platform="gpu", **scaled)
        if tiles is None:
            return scaled_matmul(x, matrix, scales, compute=jnp.bfloat16, **options, **named)
        return dense_gpu.multiply(x, matrix, scales, None, tiles=tiles, **options)

    def program(self, backend: str, tiles: Any = None) -> Any:
        """All calls, one after the other, compiled."""
        one = jax.jit(functools.partial(self.product, backend, tiles))

        def run(x: jax.Array, shared: Any, owns: Any) -> list[jax.Array]:
            results = []
            for own in owns:
                results.append(one(x, shared, own))
                x, results[-1] = jax.lax.optimization_barrier((x, results[-1]))  # in turn, and none merged
            return results

        return jax.jit(run).lower(self.x, self.shared, self.own).compile()

    def results(self, program: Any) -> list[jax.Array]:
        found: list[jax.Array] = program(self.x, self.shared, self.own)
        return found

    def microseconds(self, program: Any, sizes: Sizes) -> float:
        """Of a call, the median over samples of some programs each."""
        jax.block_until_ready(self.results(program))
        samples = []
        for _ in range(sizes.samples):
            begun = time.perf_counter()
            for _ in range(sizes.programs):
                found = self.results(program)
            jax.block_until_ready(found)
            samples.append((time.perf_counter() - begun) / (sizes.programs * self.calls))
        return statistics.median(samples) * 1e6


def _matrices(key: jax.Array, kind: Kind, shape: tuple[int, ...]) -> tuple[jax.Array, jax.Array | None]:
    """Matrices `[O, I]` or `[G, I, O]` of random numbers, and scales."""
    grouped = len(shape) == 3
    inputs, outputs = (shape[1], shape[2]) if grouped else (shape[1], shape[0])
    if kind.dtype == jnp.uint8:
        paired = (*shape[:-2], shape[-2] // 2, shape[-1])
        matrix = jax.random.bits(key, paired, jnp.uint8)
    elif kind.dtype == jnp.int8:
        matrix = jax.random.randint(key, shape, -127, 128, jnp.int8)
    else:
        matrix = jax.random.normal(key, shape, jnp.bfloat16).astype(kind.dtype)
    if kind.group is None:
        scales = jnp.full((*shape[:-2], outputs), 0.01, jnp.float32) if kind.dtype == jnp.int8 else None
        return matrix, scales
    count = -(-inputs // (kind.group or inputs))
    return matrix, jax.random.uniform(key, (*shape[:-2], count, outputs), jnp.bfloat16, 0.01, 0.02)


def main(arguments: list[str] | None = None) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experts", action="store_true", help="products of experts; rows are tokens")
    parser.add_argument("--tiles", action="store_true", help="try candidates of tiles")
    parser.add_argument("--shapes", nargs="+", default=None, help="INPUTSxOUTPUTS")
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--rows", nargs="+", type=int, default=list(ROWS))
    parser.add_argument("--backends", nargs="+", default=["gpu", "xla"], choices=["gpu", "xla"])
    parser.add_argument("--seconds", type=float, default=1e9, help="end after about so many")
    parser.add_argument("--interpret", action="store_true")
    options = parser.parse_args(arguments)
    device = gpu_or_trial(parser, interpret=options.interpret)
    sizes, until = TINY if options.interpret else Sizes(), time.monotonic() + options.seconds
    shapes = options.shapes or (["128x64"] if options.interpret else EXPERT_SHAPES if options.experts else SHAPES)
    with interpreted_gpu() if options.interpret else nullcontext():
        copied = copy_speed(sizes.copy_bytes, 3)
        cases = [
            Case(*map(int, shape.split("x")), kind, rows, *((sizes.experts, sizes.chosen) if options.experts else ()))
            for shape, kind, rows in itertools.product(shapes, options.kinds, options.rows)
        ]
        measure = best_tiles if options.tiles else functools.partial(compared, backends=options.backends)
        rows = []
        for case in cases:
            if time.monotonic() > until:
                print(f"{len(rows)} of {len(cases)} cases in {options.seconds} s", file=sys.stderr)
                break
            made = Made(case, sizes)
            floor = made.touched_bytes() / copied * 1e6
            rows.append({**case.describe(), "floor_us": round(floor, 2), **measure(made, sizes)})
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    told = report("gpu_products", device, interpret=options.interpret, copied=copied, rows=rows)
    print(json.dumps(told, indent=1))
    return 0


def compared(made: Made, sizes: Sizes, *, backends: list[str]) -> dict[str, Any]:
    """Microseconds of each backend, and how far apart they are."""
    found: dict[str, Any] = {}
    results = []
    programs = dict(zip(backends, compiled(made.program, backends), strict=True))
    for backend, program in programs.items():
        if isinstance(program, Exception):
            found[backend] = f"{type(program).__name__}: {program}"[:200]
            continue
        found[f"{backend}_us"] = round(made.microseconds(program, sizes), 2)
        results.append(np.asarray(made.results(program)[0], np.float32))
    if len(results) == 2:
        found["difference"] = _difference(*results)
    return found


def _difference(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.abs(one - other).max() / np.abs(other).max())


def best_tiles(made: Made, sizes: Sizes) -> dict[str, Any]:
    """The fastest of the candidates, all of them, and what is chosen without asking."""
    if made.kind.group is None:
        return {}
    candidates = list(_grouped_candidates(made.case) if made.case.experts else _dense_candidates(made.case))
    short = dataclasses.replace(sizes, samples=min(3, sizes.samples), programs=min(4, sizes.programs))
    programs = compiled(functools.partial(made.program, "gpu"), candidates)
    timed = []
    for tiles, program in zip(candidates, programs, strict=True):
        shown = list(dataclasses.astuple(tiles))
        try:
            took = None if isinstance(program, Exception) else round(made.microseconds(program, short), 2)
        except jax.errors.JaxRuntimeError:  # more shared memory than there is
            took = None
        timed.append((shown, took))
    ran = sorted((item for item in timed if item[1] is not None), key=lambda item: item[1])
    failed = [shown for shown, took in timed if took is None]
    return {"best": ran[:1], "candidates": ran, "failed": failed}


def compiled(make: Callable[[Any], Any], arguments: Sequence[Any]) -> list[Any]:
    """What `make` makes of each, on all cores; or its error: a candidate that does not compile is no reason to end."""

    def attempt(argument: Any) -> Any:
        try:
            return make(argument)
        except Exception as error:
            return error

    with ThreadPoolExecutor() as pool:
        return [
            task.result() for task in [pool.submit(copy_context().run, attempt, argument) for argument in arguments]
        ]


def _dense_candidates(case: Case) -> Iterator[dense_gpu.Tiles]:
    """Of `scaled_matmul`."""
    heights = {1: (16,), 8: (16,), 16: (16,), 64: (16, 32, 64), 256: (64, 128)}.get(case.rows, (128,))
    kept = case.outputs // (2 if KINDS[case.kind].bits == 4 else 1)
    for height, width, (inputs, stages), per_processor in itertools.product(
        heights, (32, 64, 128), ((64, 5), (128, 3), (128, 4), (256, 3)), (1, 2, 4)
    ):
        programs = -(-kept // width) * -(-case.rows // height)
        splits = min(max(1, per_processor * dense_gpu.MULTIPROCESSORS // programs), case.inputs // (2 * inputs))
        if splits < 1 or (height >= 64 and (inputs > 128 or stages > 3)):
            continue
        yield dense_gpu.Tiles(height, width, inputs, splits, 8 if height * width > 64 * 64 else 4, stages)


def _grouped_candidates(case: Case) -> Iterator[grouped_gpu.Tiles]:
    """Of `grouped_scaled_matmul`, for as many rows as an expert has."""
    mean = case.rows * case.chosen // case.experts
    heights = (16,) if mean <= 4 else (16, 32) if mean <= 16 else (32, 64, 128)
    for height, width, (inputs, stages), splits in itertools.product(
        heights, (32, 64, 128), ((64, 4), (128, 3), (128, 4), (256, 3)), (1, 2, 4)
    ):
        if splits > 1 and (mean >= 1 or case.inputs < 1024):
            continue
        yield grouped_gpu.Tiles(height, width, inputs, splits, 8 if height * width > 64 * 128 else 4, stages)


if __name__ == "__main__":
    sys.exit(main())
