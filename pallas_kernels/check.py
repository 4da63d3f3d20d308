"""Compile the ops for the heads of real models on named TPUs and GPUs: the real compilers, and no device.

`python -m pallas_kernels.check --target v6e` (several, `all-tpu` or `all-gpu`) prints a line for every program, and exits with 1
when one does not compile or moves the pool of pages. TPUs need libtpu; GPUs JAX's CUDA plugin, in an environment of its own.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pallas_kernels import kv_page_shape, paged_attention, write_kv
from pallas_kernels.gpu import targets as gpu_targets
from pallas_kernels.storage import QUANTISED

TOPOLOGIES: dict[str, tuple[str, dict[str, Any]]] = {
    "v4": ("v4:2x2x1", {"chip_config_name": "megacore"}),
    "v5e": ("v5e:2x2", {}),
    "v5p": ("v5p:2x2x1", {}),
    "v6e": ("v6e:2x2", {}),
    "tpu7x": ("tpu7x:2x2x1", {}),
}
"""Four chips of every generation, as the compiler calls them; a device of tpu7x is half a chip."""
ALL = {"all-tpu": tuple(TOPOLOGIES), "all-gpu": tuple(gpu_targets.GPUS)}
ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_LOG_DIR": "disabled",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
PAGE_TOKENS = 64
PAGES = 4096  # more than any chip's own memory holds: a copy of the pool cannot hide there
PAGES_PER_ROW = 128
MOVES = ("copy", "copy-start", "convert", "transpose", "gather", "concatenate", "all-gather", "all-to-all")


@dataclass(frozen=True)
class Heads:
    """The attention of a model: `query` heads share `kv` heads of `size`; with `until` a token says what it sees."""

    query: int
    kv: int
    size: int
    window: int | None = None
    soft_cap: float | None = None
    kv_dtype: str = "bfloat16"
    until: bool = False


MODELS = {
    "Llama-3.1-8B": Heads(32, 8, 128),
    "Llama-3.1-70B": Heads(64, 8, 128),
    "Llama-3.2-1B": Heads(32, 8, 64),
    "Qwen3-0.6B": Heads(16, 8, 128),
    "Qwen3-32B": Heads(64, 8, 128),
    "Gemma-2-9B": Heads(16, 8, 256, window=4096, soft_cap=50.0),
    "Llama-3.1-8B int8": Heads(32, 8, 128, kv_dtype="int8"),
    "Gemma-3-27B": Heads(32, 16, 128, window=1024, until=True),
    "Whisper-large-v3": Heads(20, 20, 64, until=True),
    "Qwen3-0.6B float8": Heads(16, 8, 128, kv_dtype="float8_e4m3fn"),
}
STEPS = {"decode": (64, 64), "prefill": (8, 1024)}
"""Rows and token places of a step."""


@dataclass(frozen=True)
class Check:
    """One program for one target, on `chips` devices that share the heads. `pool` is the pages' shape on one of them."""

    name: str
    pool: tuple[int, ...]
    itemsize: int
    lower: Callable[[], Any]

    def compile(self) -> Any:
        """The executable.

        Raises:
            ValueError: it does not write into the pool in place.
        """
        compiled = self.lower().compile()
        moved = pool_moves(compiled, self.pool, itemsize=self.itemsize)
        if moved:
            raise ValueError("; ".join(moved))
        return compiled


def pool_moves(compiled: Any, pool: tuple[int, ...], *, itemsize: int, most_temporary: float = 0.5) -> list[str]:
    """What a program does to a donated pool beside writing into it: nothing, if the list is empty.

    Of temporary memory it may have less than `most_temporary` times the pool's bytes.
    """
    found = []
    memory = compiled.memory_analysis()
    pool_bytes = math.prod(pool) * itemsize
    if memory.alias_size_in_bytes < pool_bytes:
        found.append(f"the pool of {pool_bytes} bytes is not aliased, only {memory.alias_size_in_bytes} bytes are")
    if memory.temp_size_in_bytes >= pool_bytes * most_temporary:
        found.append(f"{memory.temp_size_in_bytes} temporary bytes beside a pool of {pool_bytes}")
    return found + pool_sized_moves(compiled.as_text(), pool)


def pool_sized_moves(hlo: str, pool: tuple[int, ...]) -> list[str]:
    """Instructions that move or convert as many elements as the pool has, inside fusions too."""
    found = []
    for line in hlo.splitlines():
        match = re.search(r"= \(?\w+\[([\d,]+)\]\S* ([\w-]+)\(", line)
        if match and match[2] in MOVES and math.prod(map(int, match[1].split(","))) >= math.prod(pool):
            found.append(line.strip())
    return found


def devices(target: str, chips: int) -> list[Any]:
    """Compile-only devices of a TPU generation or a GPU; needs libtpu, or JAX's CUDA plugin."""
    if target in gpu_targets.GPUS:
        return gpu_targets.devices(target, chips)
    from jax.experimental.topologies import get_topology_desc

    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    topology, options = TOPOLOGIES[target]
    return list(get_topology_desc(platform="tpu", topology_name=topology, **options).devices)[:chips]


def checks(target: str, chips: int, models: dict[str, Heads] = MODELS) -> Iterator[Check]:
    """A layer's writing and attending in decode and in prefill, for every model."""
    mesh = Mesh(np.asarray(devices(target, chips)), ("tensor",))
    platform = mesh.devices.flat[0].platform
    whole, heads, pages = PartitionSpec(), PartitionSpec(None, "tensor"), PartitionSpec(None, None, "tensor")
    for model, attention in models.items():
        kv_heads = max(attention.kv, chips)  # fewer KV heads than chips: they are repeated
        kv_dtype = jnp.dtype(attention.kv_dtype)
        page = kv_page_shape(PAGE_TOKENS, kv_heads, attention.size, platform=platform, shards=chips, dtype=kv_dtype)
        pool = ((PAGES, *page), kv_dtype, pages)
        own_pool = (PAGES, page[0], page[1] // chips, page[2])
        for step, (rows, tokens) in STEPS.items():
            new_tokens = ((tokens, kv_heads, attention.size), jnp.bfloat16, heads)
            arguments = [
                pool,
                ((tokens, attention.query, attention.size), jnp.bfloat16, heads),
                new_tokens,
                new_tokens,
                ((tokens,), jnp.int32, whole),
                ((rows, PAGES_PER_ROW), jnp.int32, whole),
                ((rows + 1,), jnp.int32, whole),
                ((rows,), jnp.int32, whole),
                *([((2, kv_heads), jnp.float32, heads)] if kv_dtype in QUANTISED else []),
                *([((tokens,), jnp.int32, whole)] if attention.until else []),
            ]
            layer = _layer(attention, platform, kv_heads // chips)
            yield Check(
                f"{model} {step}", own_pool, kv_dtype.itemsize, _lowering(mesh, layer, arguments, (pages, heads))
            )


def _layer(attention: Heads, backend: str, kv_heads: int) -> Callable[..., Any]:
    def layer(
        kv_pages: Any, q: Any, k: Any, v: Any, slots: Any, table: Any, offsets: Any, starts: Any, *others: Any
    ) -> Any:
        until = others[-1] if attention.until else None
        kv_scales = others[0] if jnp.dtype(attention.kv_dtype) in QUANTISED else None
        kv_pages = write_kv(kv_pages, k, v, slots, kv_scales=kv_scales, backend=backend)
        result = paged_attention(
            q,
            kv_pages,
            table,
            offsets,
            starts,
            until=until,
            kv_scales=kv_scales,
            scale=attention.size**-0.5,
            window=attention.window,
            soft_cap=attention.soft_cap,
            kv_heads=kv_heads,
            backend=backend,
        )
        return kv_pages, result

    return layer


def _lowering(
    mesh: Mesh, function: Any, arguments: list[tuple[Any, Any, PartitionSpec]], out: Any
) -> Callable[[], Any]:
    """`function` over each chip's own part of (shape, dtype, partition) arguments; the first one is donated."""
    structs = [
        jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec)) for shape, dtype, spec in arguments
    ]
    specs = tuple(spec for _, _, spec in arguments)
    platform = {"gpu": "cuda"}.get(mesh.devices.flat[0].platform, mesh.devices.flat[0].platform)
    mapped = jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=out, check_vma=False)

    def lower() -> Any:
        with jax.set_mesh(mesh):
            return jax.jit(mapped, donate_argnums=0).trace(*structs).lower(lowering_platforms=(platform,))

    return lower


def main(arguments: list[str] | None = None) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m pallas_kernels.check", description=__doc__)
    parser.add_argument("--target", nargs="+", default=["all-tpu"], choices=[*TOPOLOGIES, *gpu_targets.GPUS, *ALL])
    parser.add_argument(
        "--chips", nargs="+", type=int, default=[1], choices=[1, 2, 4], help="chips that share the heads"
    )
    parser.add_argument("--model", nargs="+", default=list(MODELS), choices=list(MODELS))
    options = parser.parse_args(arguments)
    jax.config.update("jax_platforms", "cpu")  # nothing runs, and a TPU at hand is left alone
    targets = [name for target in options.target for name in ALL.get(target, (target,))]
    lacking = gpu_targets.missing()
    if lacking is not None and not gpu_targets.GPUS.keys().isdisjoint(targets):
        parser.error(f"to compile for a GPU this environment lacks {lacking}")
    models = {name: MODELS[name] for name in options.model}
    print(f"{'target':8} {'chips':>5}  {'program':24} {'compile s':>9} {'code KiB':>9} {'temp MiB':>9}")
    failed = 0
    for target in targets:
        for chips in options.chips:
            for check in checks(target, chips, models):
                start = time.perf_counter()
                try:
                    memory = check.compile().memory_analysis()
                except Exception as error:  # whatever stops one program: the others are still of interest
                    failed += 1
                    print(f"{target:8} {chips:5}  {check.name:24} FAILED {type(error).__name__}: {str(error)[:500]}")
                    continue
                seconds = time.perf_counter() - start
                code, temporary = memory.generated_code_size_in_bytes / 2**10, memory.temp_size_in_bytes / 2**20
                print(f"{target:8} {chips:5}  {check.name:24} {seconds:9.1f} {code:9.0f} {temporary:9.1f}", flush=True)
    print(f"{failed} failed" if failed else "all compile, in place")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
