"""Forward passes of an engine on TPUs by the compiler's own figures, from config.json alone: no TPU, nothing is run. JSON out.

    python -m benchmarks.tpu_steps --config CONFIG_JSON --target v6e-1 --shapes 64x1 256x8 --layers 2 4
    python -m benchmarks.tpu_steps --config CONFIG_JSON --target v5e-4 --shapes 256x8 --layers 2 --option xla_some_flag=true

The programs are the engine's own, of so many layers. In thousands of cycles, on each device: `estimate` is the sum of what XLA
writes beside its instructions, which leaves out Pallas kernels, what devices send each other, and reading that goes on meanwhile;
`floor` the bytes of the matrices at the rate that XLA assumes where it waits for them (86% of the bandwidth); `bound` the larger
one of reading them at the published bandwidth and of multiplying at the published peak. `share` is the bound over the larger one
of the others. With two numbers of layers the difference is told as well, `per_layer`, without what is around the layers.

Two layers of Llama-3.1-8B and of Qwen3-0.6B with what is around them: half of it in thousands of cycles, CPU-seconds of compiling
and packed MB, at 34c190a, at fbcb278 and since (libtpu 0.0.42.1). What devices send each other is in none of it:

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

The estimates are far from the final schedules where something is only moved or scaled. Of a layer of 256x8 on v6e-1 at fbcb278,
bundles times passes of the loop around them against estimates, in thousands: gate 473 and 525, up 496 and 520, down 500 and 550,
queries 135 and 148, keys and values 34 and 36 each; a norm 9 to 16 and 55; attention's results for the next product 17 and 54 to
72; keys and values as the cache has them 22 and 7; turning queries and laying them out 110 and 109 to 208, now in a kernel 25
and none. With 137 taken for attention's own product a layer comes to some 1,900 by its schedule, 89% of the bound, attention
left out, where the estimates have 76%. A change that only the estimates show is none.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping
from typing import Any

from tqdm import tqdm

from buckets import Bucket
from jaxengine.bench import machine
from jaxengine.config import EngineConfig
from jaxengine.errors import ConfigError
from jaxengine.runtime.forward import forward_programs
from jaxengine.runtime.target import DEFAULTS, find_target
from jaxengine.startup.limits import EngineLimits
from jaxengine.startup.model_plan import plan_model
from jaxengine.startup.pool import plan_space
from jaxengine.startup.progress import Progress
from xla_cache.cycles import estimated_cycles
from xla_cache.payload import pack
from xla_cache.store import SMALL, compress

STREAMED = 0.86
"""Of the bandwidth, what XLA's estimates of products of few rows come to (v6e: 795 to 806 bytes a cycle)."""
PAGES, CONTEXT = 1024, 8192


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", required=True, help="config.json of the model")
    parser.add_argument("--target", nargs="+", default=["v6e-1"])
    parser.add_argument("--shapes", nargs="+", default=["64x1", "256x8"], help="buckets")
    parser.add_argument("--layers", nargs="+", type=int, help="numbers of layers (the model's own)")
    parser.add_argument(
        "--option", action="append", default=[], metavar="NAME=VALUE", help="of XLA, beside the engine's"
    )
    arguments = parser.parse_args()
    options = dict(map(_option, arguments.option))
    cases = [(target, shape) for target in arguments.target for shape in arguments.shapes]
    found = [
        {"target": target, "shape": shape, **measure(arguments.config, target, shape, arguments.layers, options)}
        for target, shape in tqdm(cases)
    ]
    print(json.dumps({"kind": "static estimate", "machine": machine.describe(), "programs": found}, indent=1))


def measure(
    config: str, target: str, shape: str, layers: list[int] | None, options: Mapping[str, Any]
) -> dict[str, Any]:
    """The figures of a bucket, for each number of layers."""
    by_layers = {
        count or "all": of_layers(config, target, Bucket(*map(int, shape.split("x"))), count, options)
        for count in layers or [None]
    }
    if layers is None or len(layers) != 2:
        return {"by_layers": by_layers}
    first, second = sorted(layers)
    names = ("estimate", "floor", "bound")
    each = {name: round((by_layers[second][name] - by_layers[first][name]) / (second - first), 1) for name in names}
    return {"by_layers": by_layers, "per_layer": {**each, "share": _share(**each)}}


def of_layers(
    path: str, target_name: str, bucket: Bucket, layers: int | None, options: Mapping[str, Any]
) -> dict[str, Any]:
    """The figures of one program."""
    target = find_target(target_name)
    assert target.chip is not None
    config = EngineConfig.from_options(
        model=path,
        load_format="dummy",
        hf_overrides={} if layers is None else {"num_hidden_layers": layers},
        tensor_parallel_size=target.num_devices,
        max_model_len=CONTEXT,
        num_pages=PAGES,
    )
    model = plan_model(config, weights=False, target=target)
    defaults = DEFAULTS[model.platform]
    limits = EngineLimits.resolve(config, model_max_len=model.config.max_position_embeddings, defaults=defaults)
    [program] = forward_programs(plan_space(model, config, limits, defaults, Progress(), measure=False).space, bucket)
    begun = time.process_time()
    lowered = program.lower()
    compiled = lowered.compile({**program.compiler_options, **options})
    compile_s = time.process_time() - begun
    roofline, clock = model.roofline(target.chip), target.chip.clock_hz / 1e3
    figures = {
        "estimate": (estimated_cycles(compiled) or 0) / 1e3,
        "floor": roofline.layer_bytes / target.chip.memory_bandwidth / STREAMED * clock,
        "bound": roofline.floor(bucket.tokens, sampling=False)[0] * clock,
    }
    memory = compiled.memory_analysis()
    return {
        **{name: round(value, 1) for name, value in figures.items()},
        "share": _share(**figures),
        "compile_cpu_s": round(compile_s, 1),
        "packed_mb": round(len(compress(pack(compiled, program)[0], level=SMALL)) / 1e6, 2),
        "code_mb": round(memory.generated_code_size_in_bytes / 1e6, 1),
        "temp_mb": round(memory.temp_size_in_bytes / 1e6, 1),
    }


def _share(estimate: float, floor: float, bound: float) -> float:
    return round(bound / max(estimate, floor), 3)


def _option(text: str) -> tuple[str, Any]:
    name, found, value = text.partition("=")
    if not found:
        raise ConfigError(f"--option takes NAME=VALUE, got {text!r}")
    return name, {"true": True, "false": False}.get(value, value)


if __name__ == "__main__":
    main()
