"""Layers unrolled, scanned, or scanned a few at a time: what each costs to compile, and to run by the compiler's own figures.

The real layers of a model, compiled for a TPU that need not be here. A scanned body's cycles count as often as it runs. JSON out.

With this libtpu, in cycles of a layer of Llama-3.1-8B: the feed-forward network's products apart (`PRODUCTS_APART` in
`jaxengine/device/runtime/compiler_options.py`) 526, 582 and 624 thousand on v6e with 8, 64 and 256 rows, and one in the other
616, 673 and 755; 463 and 552 on tpu7x with 64; with 2,048 rows, and on v4, v5e and v5p, nothing changes. With `SCOPED_VMEM_KIB`
on v6e 541 thousand and not 570 with 64 places, 592 and not 628 with 256; two layers then compile in 17 CPU-seconds and not 12,
and in 41 and not 28.

python benchmarks/layer_forms.py --config CONFIG_JSON --target v6e-1 --rows 64 --unroll 1 4 28
"""

from __future__ import annotations

import argparse
import json
import re
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.experimental.serialize_executable import serialize
from jax.sharding import NamedSharding, PartitionSpec
from tqdm import tqdm

from jaxengine.bench import machine
from jaxengine.device.layers.cache import Cache
from jaxengine.device.layers.context import ModelContext
from jaxengine.device.layers.keeps import CacheIndex
from jaxengine.device.layers.sharding import share_layers
from jaxengine.device.layers.stack import run_layers
from jaxengine.device.layers.step import Shared, Step
from jaxengine.device.models.registry import read_config, resolve
from jaxengine.device.runtime.cache_layout import lay_out
from jaxengine.device.runtime.compiler_options import compiler_options
from pallas_kernels import kv_page_shape, kv_storage_dtype
from xla_cache.cycles import CYCLES
from xla_cache.store import SMALL, compress
from xla_cache.target import target

PAGES, PAGE_SIZE, PAGES_PER_ROW = 2048, 64, 128


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, required=True, help="config.json of the model")
    parser.add_argument("--target", default="v6e-1")
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--seq", type=int, default=1)
    parser.add_argument(
        "--unroll", nargs="+", type=int, default=[1, 4, 0], help="layers in one loop body; 0 is no loop"
    )
    arguments = parser.parse_args()
    forms = [measure(arguments, unroll) for unroll in tqdm(arguments.unroll)]
    print(
        json.dumps(
            {"machine": machine.describe(), **{k: str(v) for k, v in vars(arguments).items()}, "forms": forms}, indent=1
        )
    )


def measure(arguments: argparse.Namespace, unroll: int) -> dict[str, Any]:
    values = json.loads(arguments.config.read_text())
    chosen = target(arguments.target)
    layout = share_layers(chosen.devices()[:1])
    model_class = resolve(values)
    config = read_config(model_class, values)
    context = ModelContext(dtype=jnp.dtype(jnp.bfloat16), platform="tpu", layout=layout)
    model = nnx.eval_shape(lambda: model_class(config, context))
    whole = NamedSharding(layout.mesh, PartitionSpec())
    places, layers = arguments.rows * arguments.seq, len(model.layers)
    parts = [nnx.split(layer) for layer in model.layers]
    structure = parts[0][0]
    states = [on(state, whole) for _, state in parts]
    if unroll:
        states = jax.tree.map(lambda leaf: struct((layers, *leaf.shape), leaf.dtype, whole), states[0])

    layout = lay_out(model.cache, max_model_len=PAGES_PER_ROW * PAGE_SIZE)
    [shared] = layout.pools
    assert shared.windows == (None,), "layers that see a window lie in groups of their own, and no loop runs over those"

    def step(states: Any, x: Any, kv_pages: Any, page_table: Any, offsets: Any, starts: Any, slots: Any) -> Any:
        given = Step(
            slots,
            page_table[None],
            offsets,
            starts,
            slots[None],
            shared=Shared((config.rope.angles(slots),)),
            indices=layout.indices,
            num_pages=(PAGES,),
            page_size=PAGE_SIZE,
            attention_backend="auto",
        )
        if not unroll:
            return run_layers([nnx.merge(structure, state) for state in states], x, Cache((kv_pages,)), given)

        def body(carry: Any, layer: Any) -> Any:
            state, number = layer
            return nnx.merge(structure, state)(*carry, given.at(number, CacheIndex(lane=number))), None

        return jax.lax.scan(body, (x, Cache((kv_pages,))), (states, jnp.arange(layers)), unroll=unroll)[0]

    dtype = jnp.dtype(kv_storage_dtype(jnp.bfloat16, platform="tpu"))
    page = kv_page_shape(PAGE_SIZE, shared.heads, shared.key, platform="tpu")
    pool = (shared.lanes * PAGES, *page)
    integers = lambda *shape: struct(shape, jnp.int32, whole)  # noqa: E731
    given = (
        states,
        struct((places, config.hidden_size), jnp.bfloat16, whole),
        struct(pool, dtype, layout.kv_sharding()),
        integers(arguments.rows, PAGES_PER_ROW),
        integers(arguments.rows + 1),
        integers(arguments.rows),
        integers(places),
    )
    begun = time.process_time()
    with jax.set_mesh(layout.mesh):
        lowered = jax.jit(step, donate_argnums=2).trace(*given).lower(lowering_platforms=("tpu",))
    lowered_at = time.process_time()
    options = compiler_options("tpu", chip=chosen.chip.name, places=places)
    compiled = lowered.compile(dict(options))
    compiled_at = time.process_time()
    memory, payload = compiled.memory_analysis(), serialize(compiled)[0]
    cycles = count_cycles(compiled.as_text() or "", trips=layers // unroll if unroll else 1)
    return {
        "layers_in_a_body": unroll or layers,
        "trace_and_lower_cpu_s": round(lowered_at - begun, 2),
        "compile_cpu_s": round(compiled_at - lowered_at, 2),
        "temp_mb": round(memory.temp_size_in_bytes / 1e6, 2),
        "serialised_mb": round(len(payload) / 1e6, 2),
        "packed_mb": round(len(compress(payload, level=SMALL)) / 1e6, 2),
        "cycles": cycles,
        "cycles_a_layer": round(cycles / layers),
        "estimated_ms": round(cycles / chosen.chip.clock_hz * 1e3, 3),
    }


def struct(shape: Any, dtype: Any, sharding: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(tuple(shape), dtype, sharding=sharding)


def on(state: Any, sharding: Any) -> Any:
    return jax.tree.map(lambda leaf: struct(leaf.shape, leaf.dtype, sharding), state)


def count_cycles(text: str, *, trips: int) -> int:
    """XLA's cycles of the entry computation, and `trips` times those of every other: they are the loop's."""
    total, entry = 0, False
    for line in text.splitlines():
        if re.match(r"^(ENTRY )?%?\S+ .*\{$", line):
            entry = line.startswith("ENTRY")
        total += sum(map(int, CYCLES.findall(line))) * (1 if entry else trips)
    return total


if __name__ == "__main__":
    main()
