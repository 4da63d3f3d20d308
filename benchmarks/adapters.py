"""What adapters cost a step on this machine's CPU: programs with and without them by turns. JSON out.

    python -m benchmarks.adapters --config CONFIG_JSON --rows 32 --slots 8 --rank 16

Each row decodes one token of a sequence; row n goes through adapter n modulo the slots, `mixed` every second row through none.
Weights and adapters are random. A step is the forward pass; its time is the median of so many by turns, as other work on the
machine slows all of them alike.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from tqdm import tqdm

from buckets import Bucket
from jaxengine.bench import machine
from jaxengine.contract.batch import SamplingSpec, SlotState
from jaxengine.contract.rows import Row, Rows
from jaxengine.device.runtime.executables import Executables
from jaxengine.device.runtime.forward import ForwardPass
from jaxengine.device.runtime.forward_programs import forward_programs
from jaxengine.device.runtime.inputs import FlatRows, KeptPlaces, PageTables, pad
from jaxengine.device.runtime.launcher import allocate_state
from jaxengine.device.runtime.slot_state import SlotTable
from jaxengine.device.runtime.space import ProgramSpace
from jaxengine.options.config import EngineConfig
from jaxengine.startup.pool import plan_space
from jaxengine.startup.prepare import prepare
from jaxengine.startup.progress import Progress

CONTEXT = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", required=True, help="config.json of the model")
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--turns", type=int, default=40)
    arguments = parser.parse_args()
    bucket = Bucket(arguments.rows, 1)
    config = EngineConfig.from_options(
        model=arguments.config,
        load_format="dummy",
        enable_lora=True,
        max_loras=arguments.slots,
        max_lora_rank=arguments.rank,
        max_model_len=4 * CONTEXT,
        max_num_seqs=arguments.rows,
        bucket_planner="explicit",
        buckets=(str(bucket),),
        max_num_batched_tokens=arguments.rows,
    )
    space = plan_space(prepare(config, Progress()), measure=False).space
    numbers = range(arguments.rows)
    through = {
        "none": [0 for _ in numbers],
        "mixed": [0 if number % 2 else 1 + number // 2 % arguments.slots for number in numbers],
        "all": [1 + number % arguments.slots for number in numbers],
    }
    seconds = measure(space, bucket, through, turns=arguments.turns)
    medians = {name: statistics.median(taken) for name, taken in seconds.items()}
    more = {name: statistics.median(map(_ratio, taken, seconds["none"])) - 1 for name, taken in seconds.items()}
    print(
        json.dumps(
            {
                "machine": machine.describe(),
                **vars(arguments),
                "step_ms": {name: round(1e3 * median, 2) for name, median in medians.items()},
                "least_ms": {name: round(1e3 * min(taken), 2) for name, taken in seconds.items()},
                "more_than_none": {name: round(share, 4) for name, share in more.items() if name != "none"},
            },
            indent=1,
        )
    )


def measure(
    space: ProgramSpace, bucket: Bucket, through: dict[str, Sequence[int]], *, turns: int
) -> dict[str, list[float]]:
    """The seconds of steps whose rows go through these adapters, by turns."""
    executables, _ = Executables.compile(forward_programs(space, bucket), threads=2)
    generator = np.random.default_rng(0)

    def random(structs: Sequence[jax.ShapeDtypeStruct]) -> list[jax.Array]:
        made = (generator.standard_normal(struct.shape, np.float32) * np.float32(0.02) for struct in structs)
        return [jax.device_put(array.astype(struct.dtype)) for array, struct in zip(made, structs, strict=True)]

    forward = ForwardPass(space, random(list(space.parameters.values())))
    forward.adapt(random(list(space.graph.adapters.values())))
    cache, slots = allocate_state(space)
    seconds: dict[str, list[float]] = {name: [] for name in through}
    steps = {name: _step(space, bucket, adapters) for name, adapters in through.items()}
    for turn in tqdm(range(turns + 2)):
        for name, (layout, buffer) in steps.items():
            begun = time.perf_counter()
            left, cache = forward.run(
                lambda name, *given: executables[name](*given),
                layout,
                cache,
                slots.last_token,
                [jax.device_put(buffer)],
            )
            jax.block_until_ready((left, cache))
            if turn > 1:
                seconds[name].append(time.perf_counter() - begun)
    return seconds


def _step(space: ProgramSpace, bucket: Bucket, adapters: Sequence[int]) -> tuple[Any, Any]:
    """A layout and its buffer: a row for each slot of sequences, at the same position."""
    table = SlotTable(space.max_num_seqs + 1)
    spec = SamplingSpec(temperature=0.0, seed=0)
    table.begin(SlotState(slot, spec, adapter=adapter) for slot, adapter in enumerate(adapters, 1))
    rows = FlatRows.of(Rows(Row(slot, (7 + slot,), 1, CONTEXT, None) for slot in range(1, len(adapters) + 1)))
    groups, pages = space.cache.num_groups, -(-(CONTEXT + 1) // space.page_size)
    tables = PageTables(
        space.max_num_seqs + 1, pages_per_row=space.pages_per_row, page_size=space.page_size, num_groups=groups
    )
    tables.write((slot, np.full((groups, pages), slot, np.int32)) for slot in range(1, len(adapters) + 1))
    kept, given = KeptPlaces.of(rows), table.adapters(rows)
    layout = space.layout(bucket, pages, adapters=given is not None)
    return layout, pad(layout, rows, kept, np.arange(len(kept)), tables, num_sampled=0, adapters=given)


def _ratio(taken: float, beside: float) -> float:
    return taken / beside


if __name__ == "__main__":
    main()
