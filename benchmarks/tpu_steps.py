"""Forward passes of an engine on TPUs by the compiler's own figures, from config.json alone: no TPU, nothing is run. JSON out.

    python -m benchmarks.tpu_steps --config CONFIG_JSON --target v6e-1 --shapes 64x1 256x8 --layers 2 4
    python -m benchmarks.tpu_steps --config CONFIG_JSON --target v5e-4 --shapes 256x8 --layers 2 --option xla_some_flag=true

The programs are the engine's own, of so many layers. In thousands of cycles, on each device: `estimate` is the sum of what XLA
writes beside its instructions, which leaves out Pallas kernels, what devices send each other, and reading that goes on
meanwhile; `floor` the bytes of the matrices at the rate that XLA assumes where it waits for them (86% of the bandwidth); `bound`
the larger one of reading them at the published bandwidth and of multiplying at the published peak. `share` is the bound over the
larger one of the others. With two numbers of layers the difference is told as well, `per_layer`, without what is around the
layers.

What hides sending between devices: products in parts, beside permutations of `device/layers/collective_matmul.py`, for prompts
whose parts are long enough on four devices. Options do not (libtpu 0.0.42.1). Nothing changes on v5e with
`xla_enable_async_all_gather` and `xla_tpu_(enable_async_collective_fusion(_fuse_all_gather|_multiple_steps)|
overlap_compute_collective_tc|enable_latency_hiding_scheduler)`, for in a layer nothing is independent of a gather. Of a layer
whose tokens go in two halves they start two of four gathers ahead, one of them beside 10 thousand cycles of products; they start
no scattered sum, with `xla_tpu_enable_async_collective_fusion_fuse_reduce_scatter` and `xla_enable_async_reduce_scatter_fusion`
neither. `xla_tpu_(all_gather|reduce_scatter)_collective_matmul_mode=post_spmd` makes loops of permutations and products, on v6e
where no barrier is before them; by XLA's figures of that layer `o` then takes 108 thousand cycles (49), gate and up 420 (267),
`down` 190 (147). Windowed products (`xla_jf_spmd_threshold_for_windowed_einsum_mib`) change nothing on v5e.
`xla_tpu_enable_sparse_core_collective_offload_(all_gather|reduce_scatter)` has the SparseCores of v6e send everything of halves
meanwhile: no schedule says how long those take, and what is said of compiling for them in `runtime/compiler_options.py` holds.

Two layers of Llama-3.1-8B and of Qwen3-0.6B with what is around them: half of it in thousands of cycles, CPU-seconds of
compiling and packed MB, at 34c190a, at fbcb278 and since (libtpu 0.0.42.1). What devices send each other is in none of it:

    program                 bound    34c190a           fbcb278               since
    v6e-1, 64x1             465      577, 10, 0.95     541, 17, 1.25         541, 15, 1.25 (the floor)
    v6e-1, 256x1            465      628, 28, 1.94     592, 41, 2.52         580, 43, 2.43
    v6e-1, 256x8            1,703    2,945, 42, 3.38   2,398, 50, 2.96       2,239, 48, 2.68
    v5e-1, 256x8            6,803    not measured      7,790, 52, 2.22       7,590, 43, 2.63
    v5e-4, 64x1             200      165, 8, 0.70      160, 10, 0.69         165, 8, 0.68 (the floor is 232)
    v5e-4, 256x8            1,701    2,438, 30, 1.85   2,190, 18, 1.71       2,121, 19, 1.74
    v6e-4, 64x1             116      not measured      133, 17, 1.20         132, 19, 1.19 (the floor is 135)
    v6e-4, 256x8            426      not measured      810, 36, 2.57         729, 40, 2.66
    tpu7x-2, 64x1           130      not measured      not measured          268, 9, 0.74
    tpu7x-2, 256x8          852      not measured      1,621, 44, 2.10       1,516, 40, 1.89
    v5p-8, 64x1             69       not measured      not measured          170, 9, 0.68
    v5p-8, 256x8            852      not measured      1,307, 34, 1.79       1,257, 35, 1.91
    Qwen3-0.6B v5e-1, 64x1  58       114, 7, 0.65      109, 7, 0.65          not measured

At 256x1 34c190a has the first two changes of its round already, which took 1 to 2%. Four layers of 64x1 on v6e-1 less two: 542.

`--schedules` runs the final schedules of all instructions instead (`xla_cache/schedules` says how, and what it assumes), for
devices of one core and decoders of attention, to all positions, a window or latent vectors, of delta rules and of experts: a full
step, of rows that decode at `--context` positions or of one prompt from its beginning. `schedule.cycles` has attention and
recurrences in it, which neither estimate nor bound has; `mixing_bound` is the least that they take, `reading` all bytes that are
moved, at the published bandwidth, and `schedule.share` both bounds over the larger one of cycles and reading. As many experts are
touched as tokens that choose by chance touch.

What devices send each other is under `schedule.sent`, and is in no other figure: each collective of the program with the bytes of
its whole array, whether it is started and waited for apart (`asynchronous`), and the thousands of cycles in which something is
sent at the links' nominal rate, as `jaxengine/tools/plan_links.py` takes it along the axes of the slice; of these so many are
`hidden` behind computing. Permutations take the links between their pairs, each in the order in which they were started, and
what needs none of the same passes at once; all others take every link.

    python -m benchmarks.tpu_steps --config CONFIG_JSON --target v6e-1 --shapes 64x1 256x8 --layers 2 4 --schedules

A layer of Llama-3.1-8B on v6e-1, four less two (libtpu 0.0.42.1), thousands of cycles by its instructions' schedules:

                        64x1             256x8, before    256x8
    products            465              1,806            1,793
    attention           287              288              240
    cache writes        3                26               26
    rotation            1                31               31
    norms               0                19               19
    moves               1                16               15
    between             1                1                1
    waiting for copies  -1               84               76
    all                 756              2,270            2,200
    least               752 = 465 + 286  1,769            1,769 = 1,703 + 66
    share               99.5%            77.9%            80.4%
    XLA's estimate      542              2,133            2,108

Before: until a prompt's attention summed its weights in the matrix units, four heads at a time, and reserved no more VMEM than it
needs: XLA prefetches matrices into the rest, which is where products and waiting have gained.

256x8 elsewhere: Llama-3.1-8B on v5e-4 takes 2,009 without sending (87.9% of 1,701 + 66): products 1,701, attention 129, waiting
54, kernels that send 71. Qwen3-0.6B on v5e-1 takes 848 (73.3% of 491 + 131): products 498, attention 239, writing 34, moves 31,
rotation 22. Of it 31 are XLA's moves of normalised heads, which no kernel takes. On v5e products are at the published peak, which
their bundles alone would pass by a tenth: what they really take is not known. Llama-3.1-8B on v6e-4, before, took 675 without
sending (65.5% of 426 + 16): products 464, attention 75, kernels that send 68.

Decoding: all bytes at the published bandwidth, of which XLA expects 86%. That a schedule allows it says nothing of what a memory
gives. `waiting` is negative where two more layers give prefetched matrices more time.

The schedules agree with what else is known. The bytes of products and of attention that decodes are exactly those of matrices
and caches. Attention at 1,024 positions is 100% of the bandwidth, where `benchmarks/kernels.py`, which lets no row's end overlap
the next one's begin, has 98; a prompt's was 21% of the peak, and there 22 for a tile at the end of 1,024. Counted by hand,
bundles times passes, were for 256x8: gate 473, up 496, down 500, queries 135, keys and values 34 each, a norm 9 to 16,
attention's results for the next product 17. Run they are 477, 499, 486 to 489, 136 to 139, 34, 9 to 16, and 16 to 19. XLA's
estimates are 525, 520, 550, 148, 36, 55, and 54 to 72. A change that only the estimates show is none.

The largest gap of a prompt is attention: heads of 128 fill half of a unit of 256 x 256, diagonal blocks are computed with what
is not seen, and a tenth goes into taking heads apart. The products are 103 above the peak. The waiting is for activations that
XLA moves out of VMEM and back, and the least certain figure, for reading and writing share one bandwidth here.

Norms and activations computed before a product and not within it (`pallas_kernels/matmul/tpu.py`): a layer of Llama-3.1-8B with
2,048 tokens took 2,398 thousand cycles on v6e and not 2,945 (with what is around two layers, and with an earlier
`rotate/tpu.py`, which has a share of some 45 in that), in about as much of the compiler's time. With 48 MiB of scoped memory
instead of 32 it was 2,364 and 2,548, for twice that time.

Heads turned and moved, 2,048 tokens of 32 heads on v6e, thousands of cycles: by XLA's own estimates 171 for moving (72 in another
program) and 68 or 37 for turning. By the bundles of their schedules it takes 94 for moving, beside 16 or more for turning, and
`pallas_kernels/rotate/tpu_kernel.py` 25 for both, less than the 36 of reading and writing them in HBM. Words that XLA makes and
moves take 72 or 102 by its schedule, though it estimates 23.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tqdm import tqdm

from benchmarks.filling import Filling, Rows, mixers
from buckets import Bucket
from jaxengine.bench import machine
from jaxengine.device.runtime.forward_programs import forward_programs
from jaxengine.device.runtime.target import find_target
from jaxengine.errors import ConfigError
from jaxengine.options.config import EngineConfig
from jaxengine.startup.pool import plan_space
from jaxengine.startup.prepare import prepare
from jaxengine.startup.progress import Progress
from jaxengine.tools.plan_links import Links
from xla_cache.cycles import estimated_cycles
from xla_cache.payload import pack
from xla_cache.schedules.account import PASSES, account, read
from xla_cache.schedules.bundles import dump_flags
from xla_cache.schedules.sent import Collective, Passage, Sending
from xla_cache.store import SMALL, compress
from xla_cache.target import Target

STREAMED = 0.86
"""Of the bandwidth, what XLA's estimates of products of few rows come to (v6e: 795 to 806 bytes a cycle)."""
PAGES, CONTEXT = 4096, 8192
SCHEDULED = ("v5e", "v6e", "tpu7x")
"""Chips whose devices have one core, so that no other core takes a part of a program."""


@dataclass(frozen=True)
class Settings:
    """What all programs of a run share. Schedules go to `dump`, and are deleted at once: they are large."""

    config: str
    options: Mapping[str, Any] = field(default_factory=dict)
    dump: Path | None = None
    context: int = 1024
    adapters: tuple[int, int] | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)

    def values(self, layers: int | None) -> dict[str, Any]:
        """What stands over the configuration's values for so many layers."""
        if layers is None:
            return dict(self.overrides)
        kinds = json.loads(Path(self.config).read_text()).get("layer_types")
        cut = {} if kinds is None else {"layer_types": kinds[:layers]}
        return {"num_hidden_layers": layers, **cut, **self.overrides}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", required=True, help="config.json of the model")
    parser.add_argument("--target", nargs="+", default=["v6e-1"])
    parser.add_argument("--shapes", nargs="+", default=["64x1", "256x8"], help="buckets")
    parser.add_argument("--layers", nargs="+", type=int, help="numbers of layers (the model's own)")
    parser.add_argument(
        "--option", action="append", default=[], metavar="NAME=VALUE", help="of XLA, beside the engine's"
    )
    parser.add_argument(
        "--override",
        action="append",
        default=[],
        metavar="KEY=JSON",
        help="of config.json: first_k_dense_replace=1, so that few layers have experts among them",
    )
    parser.add_argument(
        "--adapters", type=int, nargs=2, metavar=("SLOTS", "RANK"), help="of steps that go through adapters"
    )
    parser.add_argument("--schedules", action="store_true", help="run the final schedules of all instructions")
    parser.add_argument("--context", type=int, default=1024, help="positions of a row that decodes, for the schedules")
    arguments = parser.parse_args()
    options = dict(map(_option, arguments.option))
    cases = [(target, shape) for target in arguments.target for shape in arguments.shapes]
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(
            arguments.config,
            options,
            Path(folder) if arguments.schedules else None,
            context=arguments.context,
            adapters=arguments.adapters and tuple(arguments.adapters),
            overrides={
                key: json.loads(value) for key, _, value in (text.partition("=") for text in arguments.override)
            },
        )
        if settings.dump:  # read when the compiler is loaded, by the first target
            os.environ["LIBTPU_INIT_ARGS"] = dump_flags(settings.dump, PASSES)
        found = [
            {"target": target, "shape": shape, **measure(settings, target, shape, arguments.layers)}
            for target, shape in tqdm(cases)
        ]
    print(json.dumps({"kind": "static estimate", "machine": machine.describe(), "programs": found}, indent=1))


def measure(settings: Settings, target: str, shape: str, layers: list[int] | None) -> dict[str, Any]:
    """The figures of a bucket, for each number of layers."""
    by_layers = {
        count or "all": of_layers(settings, target, Bucket(*map(int, shape.split("x"))), count)
        for count in layers or [None]
    }
    if layers is None or len(layers) != 2:
        return {"by_layers": by_layers}
    first, second = sorted(layers)
    less, more = by_layers[first], by_layers[second]

    def of_one(name: str, *path: str) -> float:
        pair = (less, more)
        for key in path:
            pair = (pair[0][key], pair[1][key])
        return round((pair[1].get(name, 0.0) - pair[0].get(name, 0.0)) / (second - first), 1)

    each = {name: of_one(name) for name in ("estimate", "floor", "bound")}
    result: dict[str, Any] = {**each, "share": _share(**each)}
    if settings.dump:
        kinds = more["schedule"]["by_kind"]
        by_kind = {kind: of_one(kind, "schedule", "by_kind") for kind in kinds}
        totals = {name: of_one(name, "schedule") for name in ("cycles", "mixing_bound", "reading")}
        sent = {
            name: of_one(name, "schedule", "sent") for name in ("cycles", "hidden") if name in more["schedule"]["sent"]
        }
        share = _schedule_share(each["bound"], **totals)
        result["schedule"] = {**totals, "share": share, "by_kind": by_kind, "sent": sent}
    return {"by_layers": by_layers, "per_layer": result}


def of_layers(settings: Settings, target_name: str, bucket: Bucket, layers: int | None) -> dict[str, Any]:
    """The figures of one program."""
    target = find_target(target_name)
    assert target.chip is not None
    adapted: dict[str, Any] = {}
    if settings.adapters is not None:
        slots, rank = settings.adapters
        adapted = {"enable_lora": True, "max_loras": slots, "max_lora_rank": rank}
    config = EngineConfig.from_options(
        **adapted,
        model=settings.config,
        load_format="dummy",
        hf_overrides=settings.values(layers),
        tensor_parallel_size=target.num_devices,
        max_model_len=CONTEXT,
        num_pages=PAGES,
        bucket_planner="explicit",
        buckets=(str(bucket),),
        max_num_seqs=bucket.batch,
        max_num_batched_tokens=bucket.tokens,
    )
    prepared = prepare(config, Progress(), target=target)
    model = prepared.model
    program = forward_programs(plan_space(prepared, measure=False).space, bucket)[-1]
    begun = time.process_time()
    lowered = program.lower()
    compiled = lowered.compile({**program.compiler_options, **settings.options})
    compile_s = time.process_time() - begun
    roofline, clock = model.roofline(target.chip), target.chip.clock_hz / 1e3
    figures = {
        "estimate": (estimated_cycles(compiled) or 0) / 1e3,
        "floor": roofline.layer_bytes / target.chip.memory_bandwidth / STREAMED * clock,
        "bound": roofline.floor(bucket.tokens, sampling=False)[0] * clock,
    }
    memory = compiled.memory_analysis()
    result = {
        **{name: round(value, 1) for name, value in figures.items()},
        "share": _share(**figures),
        "compile_cpu_s": round(compile_s, 1),
        "packed_mb": round(len(compress(pack(compiled, program)[0], level=SMALL)) / 1e6, 2),
        "code_mb": round(memory.generated_code_size_in_bytes / 1e6, 1),
        "temp_mb": round(memory.temp_size_in_bytes / 1e6, 1),
    }
    if settings.dump:
        filling = _filling(model.config, target, bucket, settings.context)
        scheduled = result["schedule"] = _scheduled(compiled.as_text() or "", settings.dump, target, filling)
        totals = {name: scheduled[name] for name in ("cycles", "mixing_bound", "reading")}
        scheduled["share"] = _schedule_share(figures["bound"], **totals)
    return result


def _scheduled(hlo: str, dump: Path, target: Target, filling: Filling) -> dict[str, Any]:
    """What the compiler left in `dump`, in thousands of cycles, beside the least that mixing tokens and all reading take."""
    texts = read(dump)
    for path in dump.iterdir():
        path.unlink()
    return scheduled(hlo, texts, target, filling)


def scheduled(hlo: str, texts: Mapping[str, str], target: Target, filling: Filling) -> dict[str, Any]:
    """The same of a program's text and of its schedules'."""
    chip = target.chip
    assert chip is not None
    rates = {
        "bytes_per_cycle": chip.memory_bandwidth / chip.clock_hz,
        "flops_per_cycle": chip.matrix_flops / chip.clock_hz,
    }
    found = account(hlo, texts, operands=filling.operands, sending=sending(target), **rates)
    by_kind, sent = found.pop("by_kind"), found.pop("sent")
    times = {name: round(sent[name] / 1e3, 1) for name in ("cycles", "hidden") if sent[name] is not None}
    return {
        "cycles": round(found.pop("cycles") / 1e3, 1),
        "mixing_bound": round(filling.mixing(**rates) / 1e3, 1),
        "reading": round(found.pop("moved_bytes") / rates["bytes_per_cycle"] / 1e3, 1),
        "by_kind": {kind: round(cycles / 1e3, 1) for kind, cycles in sorted(by_kind.items())},
        "sent": {**times, "collectives": sent["collectives"]},
        **found,
    }


def sending(target: Target) -> Sending:
    """The least time of a collective on a slice, in cycles; of devices that share a chip nothing is known."""

    def passage(one: Collective) -> Passage | None:
        if one.devices == 1:
            return Passage(0.0)
        links = Links.of(target, one.devices)
        if links is None or target.chip is None:
            return None
        clock = target.chip.clock_hz
        if one.kind == "all-reduce":
            return Passage(links.sum_s(one.bytes) * clock)
        if one.kind in ("all-gather", "reduce-scatter"):  # halves of a sum
            return Passage(links.sum_s(one.bytes) / 2 * clock)
        if one.kind == "all-to-all":
            return Passage(links.exchange_s(one.bytes) * clock)
        if one.kind == "collective-permute":
            seconds, taken = links.permutation_s(one.bytes, one.pairs)
            return Passage(seconds * clock, taken)
        return None

    return passage


def _filling(config: Any, target: Target, bucket: Bucket, context: int) -> Filling:
    assert target.chip is not None
    assert target.num_devices is not None
    if target.chip.name not in SCHEDULED:
        raise ConfigError(
            f"--schedules takes {', '.join(SCHEDULED)}, whose devices have one core; got {target.chip.name}"
        )
    experts = getattr(config, "experts", None)
    return Filling(
        chip=target.chip.name,
        rows=Rows(bucket, context),
        mixers=mixers(config, target.num_devices),
        pairs=0 if experts is None else bucket.tokens * experts.routing.chosen,
        experts=0 if experts is None else experts.count,
        devices=target.num_devices,
    )


def _schedule_share(bound: float, *, cycles: float, mixing_bound: float, reading: float) -> float:
    """Of the products' bound and the mixers' together, in what the schedules take or in what all reading does."""
    return round((bound + mixing_bound) / max(cycles, reading), 3)


def _share(estimate: float, floor: float, bound: float) -> float:
    return round(bound / max(estimate, floor), 3)


def _option(text: str) -> tuple[str, Any]:
    name, found, value = text.partition("=")
    if not found:
        raise ConfigError(f"--option takes NAME=VALUE, got {text!r}")
    return name, {"true": True, "false": False}.get(value, value)


if __name__ == "__main__":
    main()
