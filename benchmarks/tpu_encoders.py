"""Encoders of pictures and sounds on TPUs by the compiler's own figures, from config.json alone: nothing is run. JSON out.

    python -m benchmarks.tpu_encoders --config CONFIG_JSON --target v6e-1 v5e-1 --item 1 64 64 --layers 3 4
    python -m benchmarks.tpu_encoders --config CONFIG_JSON --target v6e-4 --item 1 64 64 --text 256x8

The first command runs the final schedules of the program that encodes one item of so many frames, rows and columns of patches:
the shape of launches that the engine plans for it, on chips of one core (`xla_cache/schedules` says how, and what it assumes). In
thousands of cycles: `cycles` what the schedules take, `reading` all bytes that they move, at the published bandwidth; `bound` the
larger one of reading the matrices once and of the item's products, and of those of attention, at the published peak. What a
launch computes beside the item is not in the bound. `share` is the bound over the larger one of the others. With two numbers of
layers the whole is told: `layer` times all layers and what is around them. The second command only compiles, all layers of the
encoder, and a step of the text that takes from the pool, of `--text-layers`.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import tempfile
import time
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
from jaxengine.device.models.towers.places import ItemGrid, Places, padded
from jaxengine.device.runtime.encoder_programs import EncoderRoom, encoder_programs
from jaxengine.device.runtime.forward import forward_programs
from jaxengine.device.runtime.space import MediaSpace, ProgramSpace
from jaxengine.device.runtime.target import find_target
from jaxengine.options.config import EngineConfig
from jaxengine.startup.pool import plan_space
from jaxengine.startup.prepare import prepare
from jaxengine.startup.progress import Progress
from pallas_kernels.row_attention import tpu
from pallas_kernels.tpu.chip import target_chip
from xla_cache.chips import Chip
from xla_cache.schedules.account import PASSES, account, read
from xla_cache.schedules.bundles import dump_flags

PAGES, CONTEXT = 1024, 8192
BEHIND_SINK = 1 << 14
"""A slot of no page that is the sink."""
FIGURES = ("cycles", "reading", "bound")
ENTERING = ("layers", "patches", "first", "second")
"""What has a row for each place; the rest of a tower has one for each embedding."""
TOWERS = ("vision_config", "audio_config")
DEPTHS = ("depth", "num_hidden_layers", "encoder_layers")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", required=True, type=Path, help="config.json of the model")
    parser.add_argument("--target", nargs="+", default=["v6e-1"])
    parser.add_argument("--item", nargs=3, type=int, required=True, metavar=("FRAMES", "ROWS", "COLUMNS"))
    parser.add_argument("--layers", nargs=2, type=int, help="numbers of the encoder's layers, whose schedules are run")
    parser.add_argument("--text", default="256x8", help="the bucket of the step of the text")
    parser.add_argument("--text-layers", type=int, default=2)
    parser.add_argument("--quantization", help="of the text's matrices")
    arguments = parser.parse_args()
    grid = ItemGrid(*arguments.item)
    with tempfile.TemporaryDirectory() as folder:
        dump = Path(folder) / "dump" if arguments.layers else None
        if dump:  # read when the compiler is loaded, by the first target
            os.environ["LIBTPU_INIT_ARGS"] = dump_flags(dump, PASSES)
        found = []
        for target in tqdm(arguments.target):
            case = Case(arguments.config, target, grid, arguments.text, arguments.text_layers, arguments.quantization)
            found.append(scheduled(case, arguments.layers, dump) if dump else compiled(case))
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

    def space(self, layers: int | None = None) -> ProgramSpace:
        """Of so many layers of the encoder, or all of them."""
        target, bucket = find_target(self.target), Bucket(*map(int, self.text.split("x")))
        config = json.loads(self.config.read_text())
        tower: dict[str, Any] = next((config[name] for name in TOWERS if name in config), config)
        text = config.get("text_config", config)
        depth = next(name for name in DEPTHS if name in tower)
        tower[depth] = layers or tower[depth]
        if layers and (taps := tower.get("deepstack_visual_indexes")):
            tower["deepstack_visual_indexes"] = list(range(len(taps)))
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
    name = f"encode {case.bucket(space.media)}"
    encoder = next(program for program in encoder_programs(space) if program.name == name)
    programs = (encoder, forward_programs(space, space.grid.buckets[-1])[-1])
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


def scheduled(case: Case, layers: Sequence[int], dump: Path) -> dict[str, Any]:
    """The figures of a layer, of what is around the layers, and of the whole."""
    first, second = sorted(layers)
    fewer, more = (_of_layers(case, count, dump) for count in (first, second))
    media = case.space().media
    assert media is not None
    depth = media.traits.config.num_layers
    layer = {name: (more[name] - fewer[name]) / (second - first) for name in FIGURES}
    around = {name: fewer[name] - first * layer[name] for name in FIGURES}
    whole = {name: around[name] + depth * layer[name] for name in FIGURES}
    by_kind = {
        kind: round((cycles - fewer["by_kind"].get(kind, 0.0)) / (second - first), 1)
        for kind, cycles in sorted(more["by_kind"].items())
    }
    taken = max(whole["cycles"], whole["reading"])
    return {
        "target": case.target,
        "bucket": more["bucket"],
        "layer": {**_rounded(layer), "by_kind": by_kind},
        "around": _rounded(around),
        "whole": {**_rounded(whole), "layers": depth, "ms": round(taken * 1e6 / case.chip.clock_hz, 3)},
        "of_no_figure": more["of_no_figure"],
    }


def _of_layers(case: Case, layers: int, dump: Path) -> dict[str, Any]:
    space, chip = case.space(layers), case.chip
    assert space.media is not None
    bucket = case.bucket(space.media)
    program = next(one for one in encoder_programs(space) if one.name == f"encode {bucket}")
    hlo = program.lower().compile(program.compiler_options).as_text() or ""
    texts = read(dump)
    for path in dump.iterdir():
        path.unlink()
    room = EncoderRoom.of(space.media, bucket)
    places = space.media.traits.tower.places(space.media.traits.config, [case.item])
    filled = padded(places, patches=room.places, rows=room.rows, windows=room.windows, embeddings=room.embeddings)
    rates = {
        "bytes_per_cycle": chip.memory_bandwidth / chip.clock_hz,
        "flops_per_cycle": chip.matrix_flops / chip.clock_hz,
    }

    def operands(kernel: str, shapes: Sequence[tuple[int, ...]]) -> Mapping[int, Sequence[int]]:
        if kernel == "write_kv":  # slots of pages that follow each other; what fills up the last run goes to the sink
            return {0: [BEHIND_SINK + at if at < len(places.taken) else 0 for at in range(shapes[0][0])]}
        if kernel != "row_attention":
            return {}
        with jax.set_mesh(mesh_of(chip.name)):
            target = target_chip()
        assert target is not None
        scalars = tpu.reached(target, jnp.asarray(filled.offsets), room.places)
        return {index: np.asarray(values).tolist() for index, values in enumerate(scalars)}

    found = account(hlo, texts, operands=operands, **rates)
    work, weights = operations(space, places)
    return {
        "bucket": str(bucket),
        "cycles": found["cycles"] / 1e3,
        "reading": found["moved_bytes"] / rates["bytes_per_cycle"] / 1e3,
        "bound": max(work / rates["flops_per_cycle"], weights / rates["bytes_per_cycle"]) / 1e3,
        "by_kind": {kind: cycles / 1e3 for kind, cycles in found["by_kind"].items()},
        "of_no_figure": {name: found[name] for name in ("unknown_branches", "without_schedule", "sent")},
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


def _rounded(figures: Mapping[str, float]) -> dict[str, float]:
    """With the share of the bound in the larger one of the others."""
    taken = max(figures["cycles"], figures["reading"])
    return {**{name: round(value, 1) for name, value in figures.items()}, "share": round(figures["bound"] / taken, 3)}


if __name__ == "__main__":
    main()
