"""Products of few rows with matrices of 4 bits on a GPU: candidates beside what is used today. JSON out.

`python -m benchmarks.gpu_few` needs a GPU. Microseconds a call, as `gpu_products` takes them, of the `gpu` backend, of bfloat16's
product of the same shape and of every candidate of tiles; `difference` is the largest from a product in float32, over its largest
result. Cases come in parts: all programs of a part are compiled in threads, then timed while nothing compiles. `--seconds` ends
before the part that would begin later, or with what a part has. A short table comes last, on standard error.

`--interpret` runs all of it at a tiny size in Pallas' interpret mode, on any machine, to try the script: times mean nothing then.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import json
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.gpu_attention import copy_speed
from benchmarks.gpu_candidates import experts as grouped_few
from benchmarks.gpu_candidates import few as dense_few
from benchmarks.gpu_candidates import words as dense_words
from benchmarks.gpu_products import KINDS, TINY, Case, Made, Sizes, compiled
from benchmarks.gpu_report import gpu_or_trial, report
from pallas_kernels import grouped_scaled_matmul, scaled_matmul
from pallas_kernels.gpu.device import interpreted_gpu
from pallas_kernels.scaled_matmul.gpu import MULTIPROCESSORS

TODAY, DENSE, EXACT = "gpu", "bf16", "float32"
SIZES = Sizes(uncached_bytes=400 << 20, samples=5, programs=4)


class Few(Made):
    """As `Made`, with programs of these candidates, and of the product in float32."""

    def product(self, backend: str, tiles: Any, x: jax.Array, shared: Any, own: Any) -> jax.Array:
        case, kind = self.case, self.kind
        options: dict[str, Any] = {"group": kind.group or case.inputs, "pairs": kind.pairs}
        if tiles is None and backend != EXACT:
            return super().product(backend, tiles, x, shared, own)
        exact = {"compute": jnp.float32, "backend": "xla", "precision": jax.lax.Precision.HIGHEST}
        if case.experts:
            (matrices, scales), (sizes, rows) = shared, own
            if tiles is None:
                return grouped_scaled_matmul(x, matrices, sizes, scales, rows=rows, **options, **exact)
            return grouped_few.multiply(x, matrices, sizes, scales, rows, dtype=jnp.bfloat16, tiles=tiles, **options)
        matrix, scales = own
        if tiles is None:
            return scaled_matmul(x, matrix, scales, **options, **exact)
        kernel = dense_words if isinstance(tiles, dense_words.Tiles) else dense_few
        return kernel.multiply(x, matrix, scales, tiles=tiles, **options)

    def program(self, backend: str, tiles: Any = None) -> Any:
        """In float32 the first call alone."""
        if backend != EXACT:
            return super().program(TODAY if backend == DENSE else backend, tiles)
        one = functools.partial(self.product, EXACT, None)
        return jax.jit(one).lower(self.x, self.shared, self.own[0]).compile()

    def exact(self, program: Any) -> np.ndarray:
        return np.asarray(program(self.x, self.shared, self.own[0]), np.float32)


def word_candidates(case: Case) -> Iterator[dense_words.Tiles]:
    group, kept = KINDS[case.kind].group or case.inputs, case.outputs // 2
    for height, stages, per_processor in itertools.product((16,) if case.rows <= 16 else (32, 64), (3, 5), (2, 4)):
        programs = max(1, kept // 64) * -(-case.rows // height)
        splits = max(1, min(round(per_processor * MULTIPROCESSORS / programs), case.inputs // 256))
        tiles = dense_words.Tiles(height, 64, 128, splits, 4, stages)
        if case.rows > 1 and dense_words.fits(tiles, kept=kept, inputs=case.inputs, group=group):
            yield tiles


def dense_candidates(case: Case) -> Iterator[dense_few.Tiles | dense_words.Tiles]:
    yield from word_candidates(case)
    group = KINDS[case.kind].group or case.inputs
    heights = (8,) if case.rows <= 8 else (16,) if case.rows <= 16 else (32, 64)
    some = (
        ((64, 6), (128, 4)) if group < 64 or case.rows > 16 else ((128, 4), (256, 3))
    )  # each group of a step is code of its own
    for height, blocks, (inputs, stages), per_processor in itertools.product(
        heights, (1, 2) if group < 64 or case.rows > 16 else (1, 2, 4), some, (4, 8)
    ):
        kept = 32
        if inputs * height > 4096:  # a warp holds them in registers
            continue
        programs = max(1, case.outputs // 2 // (kept * blocks)) * -(-case.rows // height)
        splits = max(1, min(round(per_processor * MULTIPROCESSORS / programs), case.inputs // (2 * inputs)))
        tiles = dense_few.Tiles(height, kept, blocks, inputs, splits, 2, stages)
        if dense_few.fits(tiles, kept=case.outputs // 2, inputs=case.inputs, group=group):
            yield tiles


def grouped_candidates(case: Case) -> Iterator[grouped_few.Tiles]:
    group, mean = KINDS[case.kind].group or case.inputs, case.rows * case.chosen / case.experts
    heights = (8,) if mean <= 4 else (16,)
    for height, outputs, (inputs, stages), per_processor in itertools.product(
        heights, (32, 64), ((64, 4), (128, 4)), (2, 6)
    ):
        programs = min(case.experts, case.rows * case.chosen) * max(1, case.outputs // outputs)
        splits = max(1, min(round(per_processor * MULTIPROCESSORS / programs), case.inputs // (2 * inputs)))
        tiles = grouped_few.Tiles(height, outputs, inputs, splits, 2, stages)
        if grouped_few.fits(tiles, inputs=case.inputs, outputs=case.outputs, group=group):
            yield tiles


@dataclasses.dataclass(frozen=True)
class Part:
    """Cases that are compiled together."""

    kind: str
    shapes: tuple[tuple[int, int], ...]
    rows: tuple[int, ...]
    experts: tuple[int, int] = (0, 1)

    def cases(self) -> list[Case]:
        return [
            Case(*shape, self.kind, rows, *self.experts) for shape, rows in itertools.product(self.shapes, self.rows)
        ]


WIDE, SQUARE, TALL = (4096, 28672), (4096, 4096), (14336, 4096)
PARTS = (
    Part("int4/128", (WIDE,), (1, 16)),
    Part("mxfp4", (WIDE,), (1, 16)),
    Part("int4/128", (WIDE,), (64,)),
    Part("int4/128", ((2048, 768),), (1, 8, 64), (128, 8)),
    Part("mxfp4", ((2880, 5760),), (1, 8, 64), (32, 4)),
    Part("int4/128", (SQUARE, TALL), (1, 16)),
    Part("mxfp4", (WIDE,), (64,)),
    Part("int4/32", (WIDE,), (1, 16)),
    Part("int4/128", ((768, 2048),), (1, 64), (128, 8)),
    Part("mxfp4", ((2880, 2880),), (1, 64), (32, 4)),
    Part("int4/128", ((4096, 6144),), (1, 16, 64)),
)
TRIAL = (
    Part("int4/128", ((256, 128),), (1, 20)),
    Part("mxfp4", ((256, 128),), (9,)),
    Part("int4/128", ((256, 64),), (3,), (4, 2)),
    Part("mxfp4", ((256, 64),), (3,), (4, 2)),
)


def timed(made: Few, program: Any, exact: np.ndarray, sizes: Sizes) -> dict[str, Any]:
    """Microseconds, and the difference; or why there are none."""
    try:
        if isinstance(program, Exception):
            raise program
        took = made.microseconds(program, sizes)
        found = np.asarray(made.results(program)[0], np.float32)
    except Exception as error:  # a candidate that does not compile or run is no reason to end
        return {"failed": f"{type(error).__name__}: {error}"[:160]}
    return {"us": round(took, 2), "difference": float(np.abs(found - exact).max() / np.abs(exact).max())}


def measured(part: Part, sizes: Sizes, few: int | None, until: float) -> Iterator[dict[str, Any]]:
    wanted: list[tuple[int, Few, str, Any]] = []
    cases = part.cases()
    for number, case in enumerate(cases):
        made, plain = Few(case, sizes), Few(dataclasses.replace(case, kind="bf16"), sizes)
        candidates = list(dict.fromkeys((grouped_candidates if case.experts else dense_candidates)(case)))[:few]
        wanted += [(number, made, EXACT, None), (number, made, TODAY, None), (number, plain, DENSE, None)]
        wanted += [(number, made, "few", tiles) for tiles in candidates]
    begun = time.monotonic()
    programs = compiled(lambda item: item[1].program(*item[2:]), wanted)
    print(f"{len(wanted)} programs compiled in {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
    for number, case in enumerate(cases):
        candidates, exact, found = [], np.ones(1), {}
        for (owner, made, name, tiles), program in zip(wanted, programs, strict=True):
            if owner != number or time.monotonic() > until:
                continue
            if name == EXACT:
                exact = made.exact(program)
                found = {**case.describe(), "touched_bytes": round(made.touched_bytes())}
            elif tiles is not None:
                candidates.append({"tiles": list(dataclasses.astuple(tiles)), **timed(made, program, exact, sizes)})
            else:
                found[name] = timed(made, program, exact, sizes)
        if found:
            ran = sorted((of for of in candidates if "us" in of), key=lambda of: of["us"])
            yield {**found, "candidates": ran, "failed": [of for of in candidates if "failed" in of]}


def line(row: dict[str, Any], speed: float) -> str:
    """Of the table: microseconds, and the best candidate's tiles and difference."""
    best = row["candidates"][0] if row["candidates"] else {"us": float("nan"), "difference": float("nan"), "tiles": []}
    today = row.get(TODAY, {})
    worst = max((of["difference"] for of in row["candidates"]), default=float("nan"))
    return (
        f"{row['shape']:>11} {row['kind']:>8} {row['rows']:>4} | floor {row['touched_bytes'] / speed * 1e6:6.1f} | "
        f"bf16 {row.get(DENSE, {}).get('us')!s:>7} | "
        f"gpu {today.get('us')!s:>7} ({today.get('difference', 0):.0e}) | best {best['us']:7.2f} {best['tiles']} "
        f"(differs {best['difference']:.0e}, worst {worst:.0e}), {len(row['candidates'])} ran, {len(row['failed'])} failed"
    )


def main(arguments: list[str] | None = None) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", type=int, default=None, help="numbers of parts, from 0")
    parser.add_argument("--few", type=int, default=None, help="candidates of each case, the first")
    parser.add_argument("--seconds", type=float, default=1e9, help="end after about so many")
    parser.add_argument("--interpret", action="store_true")
    options = parser.parse_args(arguments)
    device = gpu_or_trial(parser, interpret=options.interpret)
    sizes, until, rows = TINY if options.interpret else SIZES, time.monotonic() + options.seconds, []
    parts = TRIAL if options.interpret else PARTS
    with interpreted_gpu() if options.interpret else nullcontext():
        copied = copy_speed(sizes.copy_bytes, 3)
        for number in options.parts or range(len(parts)):
            if time.monotonic() > until:
                print(f"{number} of {len(parts)} parts in {options.seconds} s", file=sys.stderr)
                break
            for row in measured(parts[number], sizes, options.few, until):
                rows.append(row)
                print(json.dumps(row), file=sys.stderr, flush=True)
    told = report("gpu_few", device, interpret=options.interpret, copied=copied, rows=rows)
    print(json.dumps(told, indent=1))
    sys.stdout.flush()
    print("\n".join(line(row, copied) for row in rows), file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
