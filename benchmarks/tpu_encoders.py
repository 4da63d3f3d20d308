"""Encoders of pictures and sounds on TPUs by the compiler's own figures, from config.json alone: nothing is run. JSON out.

    python -m benchmarks.tpu_encoders --config CONFIG_JSON --target v6e-1 v5e-1 --item 1 64 64 --schedules
    python -m benchmarks.tpu_encoders --config CONFIG_JSON --target v6e-4 --item 1 64 64 --text 256x8

The first command runs the final schedules of the programs that encode one item of so many frames, rows and columns of patches:
the shape of launches that the engine plans for it, on chips of one core (`xla_cache/schedules` says how, and what it assumes). In
thousands of cycles: `cycles` what the schedules take, `reading` all bytes that they move, at the published bandwidth; `bound` the
larger one of reading the matrices once and of the item's products, and of those of attention, at the published peak. What a
launch computes beside the item is not in the bound. `share` is the bound over the larger one of the others. The whole is each
program as often as a launch calls it; what the host and the device take between programs is not in it. The second command only
compiles: the programs of that shape, and a step of the text that takes from the pool, of `--text-layers`.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from benchmarks.kernels import mesh_of
from buckets import Bucket
from jaxengine.bench import machine
from jaxengine.device.models.parameters import merge_some
from jaxengine.device.models.towers.places import ItemGrid, Places, padded
from jaxengine.device.runtime.encoder_programs import EncoderRoom, encoder_stages, programs_of
from jaxengine.device.runtime.forward_programs import forward_programs
from jaxengine.device.runtime.media_space import MediaSpace
from jaxengine.device.runtime.space import ProgramSpace
from jaxengine.device.runtime.target import find_target
from jaxengine.options.config import EngineConfig
from jaxengine.startup.pool import plan_space
from jaxengine.startup.prepare import prepare
from jaxengine.startup.progress import Progress
from pallas_kernels.row_attention import tpu
from pallas_kernels.tpu.chip import target_chip
from xla_cache import Program
from xla_cache.chips import Chip
from xla_cache.schedules.account import PASSES, account, read
from xla_cache.schedules.bundles import dump_flags

PAGES, CONTEXT = 1024, 8192
BEHIND_SINK = 1 << 14
"""A slot of no page that is the sink."""
FIGURES = ("cycles", "reading")
ENTERING = ("layers", "patches", "first", "second")
"""What has a row for each place; the rest of a tower has one for each embedding."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", required=True, type=Path, help="config.json of the model")
    parser.add_argument("--target", nargs="+", default=["v6e-1"])
    parser.add_argument("--item", nargs=3, type=int, required=True, metavar=("FRAMES", "ROWS", "COLUMNS"))
    parser.add_argument("--schedules", action="store_true", help="run the schedules of the encoder's programs")
    parser.add_argument("--text", default="256x8", help="the bucket of the step of the text")
    parser.add_argument("--text-layers", type=int, default=2)
    parser.add_argument("--quantization", help="of the text's matrices")
    arguments = parser.parse_args()
    grid = ItemGrid(*arguments.item)
    with tempfile.TemporaryDirectory() as folder:
        dump = Path(folder) / "dump" if arguments.schedules else None
        if dump:  # read when the compiler is loaded, by the first target
            os.environ["LIBTPU_INIT_ARGS"] = dump_flags(dump, PASSES)
        found = []
        for target in tqdm(arguments.target):
            case = Case(arguments.config, target, grid, arguments.text, arguments.text_layers, arguments.quantization)
            found.append(scheduled(case, dump) if dump else compiled(case))
    report = {"kind": "static estimate", "machine": machine.describe(), "model": arguments.config.stem}
    print(json.dumps({**report, "item": list(grid), "programs": found}, indent=1))


@dataclass(frozen=True)
class Case:
    """An encoder of `config` on a target, an item, and a step of the text."""

    config: Path
    target: str
    item: ItemGrid
    text: str
    text_layers: int
    quantization: str | None = None

    @property
    def chip(self) -> Chip:
        chip = find_target(self.target).chip
        assert chip is not None
        return chip

    def space(self) -> ProgramSpace:
        target, bucket = find_target(self.target), Bucket(*map(int, self.text.split("x")))
        config = json.loads(self.config.read_text())
        text = config.get("text_config", config)
        text["decoder_layers" if "decoder_layers" in text else "num_hidden_layers"] = self.text_layers
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "config.json").write_text(json.dumps(config))
            options = EngineConfig.from_options(
                model=folder,
                load_format="dummy",
                dtype="bfloat16",
                quantization=self.quantization,
                tensor_parallel_size=target.num_devices,
                max_model_len=min(CONTEXT, config.get("max_target_positions", CONTEXT)),
                num_pages=PAGES,
                bucket_planner="explicit",
                buckets=(str(bucket),),
                max_num_seqs=bucket.batch,
                max_num_batched_tokens=bucket.tokens,
            )
            return plan_space(prepare(options, Progress(), target=target), measure=False).space

    def bucket(self, media: MediaSpace) -> Bucket:
        """The smallest shape of launches that takes the item."""
        fitting = (one for one in media.buckets if one.tokens >= self.item.patches and one.batch >= self.item.frames)
        return min(fitting, key=lambda one: one.tokens)


def compiled(case: Case) -> dict[str, Any]:
    """What compiling the encoder and a step of the text takes, and what the programs need."""
    space = case.space()
    assert space.media is not None
    encoder = programs_of(space, case.bucket(space.media))
    programs = (*encoder, forward_programs(space, space.grid.buckets[-1])[-1])
    found = []
    for program in programs:
        begun = time.process_time()
        memory = program.lower().compile(program.compiler_options).memory_analysis()
        figures = {"temp": memory.temp_size_in_bytes, "alias": memory.alias_size_in_bytes}
        found.append(
            {
                "program": program.name,
                "compile_cpu_s": round(time.process_time() - begun, 1),
                **{f"{kind}_mb": round(count / 1e6, 1) for kind, count in figures.items()},
            }
        )
    return {"target": case.target, "compiled": found}


def scheduled(case: Case, dump: Path) -> dict[str, Any]:
    """The figures of each program, and of a launch of all."""
    space, chip = case.space(), case.chip
    assert space.media is not None
    bucket = case.bucket(space.media)
    room = EncoderRoom.of(space.media, bucket)
    places = space.media.traits.tower.places(space.media.traits.config, [case.item])
    filled = padded(places, patches=room.places, rows=room.rows, windows=room.windows, embeddings=room.embeddings)
    with jax.set_mesh(mesh_of(chip.name)):
        target = target_chip()
    assert target is not None
    tower = merge_some(space.graph, space.parameters, (), ()).tower  # type: ignore[attr-defined]
    stages = {stage.program_name(bucket): stage for stage in encoder_stages(space)}
    calls = Counter(stage.program_name(bucket) for stage in encoder_stages(space))
    found = {}
    for program in programs_of(space, bucket):
        layer = stages[program.name].layer
        windowed = layer is not None and tower.sees_windows(layer)
        scalars = tpu.reached(target, jnp.asarray(filled.windows if windowed else filled.offsets), room.places)
        told = [np.asarray(values).tolist() for values in scalars]
        found[program.name] = _figures(program, chip, dump, told, written=len(places.taken))
    work, weights = operations(space, places)
    bound = max(work / (chip.matrix_flops / chip.clock_hz), weights / (chip.memory_bandwidth / chip.clock_hz)) / 1e3
    whole = {name: sum(calls[one] * of[name] for one, of in found.items()) for name in FIGURES}
    taken = max(whole.values())
    return {
        "target": case.target,
        "bucket": str(bucket),
        "programs": {name: {"calls": calls[name], **of} for name, of in found.items()},
        "whole": {
            **{name: round(value, 1) for name, value in whole.items()},
            "bound": round(bound, 1),
            "share": round(bound / taken, 3),
            "ms": round(taken * 1e6 / chip.clock_hz, 3),
        },
    }


def _figures(
    program: Program, chip: Chip, dump: Path, scalars: Sequence[Sequence[int]], *, written: int
) -> dict[str, Any]:
    """Of one program, whose attention is given `scalars`, or that writes keys and values of so many places."""
    begun = time.process_time()
    hlo = program.lower().compile(program.compiler_options).as_text() or ""
    seconds = time.process_time() - begun
    texts = read(dump)
    for path in dump.iterdir():
        path.unlink()
    rates = {
        "bytes_per_cycle": chip.memory_bandwidth / chip.clock_hz,
        "flops_per_cycle": chip.matrix_flops / chip.clock_hz,
    }

    def operands(kernel: str, before: int, shapes: Sequence[tuple[int, ...]]) -> Mapping[int, Sequence[int]]:
        if kernel == "write_kv":  # slots of pages that follow each other; what fills up the last run goes to the sink
            return {0: [BEHIND_SINK + at if at < written else 0 for at in range(shapes[0][0])]}
        return dict(enumerate(scalars)) if kernel == "row_attention" else {}

    found = account(hlo, texts, operands=operands, **rates)
    return {
        "cycles": round(found["cycles"] / 1e3, 1),
        "reading": round(found["moved_bytes"] / rates["bytes_per_cycle"] / 1e3, 1),
        "by_kind": {kind: round(cycles / 1e3, 1) for kind, cycles in found["by_kind"].items()},
        "of_no_figure": {name: found[name] for name in ("unknown_branches", "without_schedule", "sent")},
        "compile_cpu_s": round(seconds, 1),
    }


def operations(space: ProgramSpace, places: Places) -> tuple[float, float]:
    """Of an item at these places: of its products and of attention, and the bytes of the matrices."""
    assert space.media is not None
    tower = {path.removeprefix("tower."): of for path, of in space.parameters.items() if path.startswith("tower.")}
    matrices = {path: math.prod(of.shape) for path, of in tower.items() if path.endswith(".weight")}
    rows = {path: len(places.order if path.startswith(ENTERING) else places.taken) for path in matrices}
    products = sum(2 * rows[path] * count for path, count in matrices.items())
    config = space.media.traits.config
    seen = {
        windows: float((np.diff(of).astype(float) ** 2).sum())
        for windows, of in ((False, places.offsets), (True, places.windows))
    }
    windowed = getattr(config, "whole", None) if getattr(config, "window", 0) else None
    attention = sum(
        4 * config.width * seen[windowed is not None and layer not in windowed] for layer in range(config.num_layers)
    )
    return products + attention, sum(2 * count for count in matrices.values())


if __name__ == "__main__":
    main()
