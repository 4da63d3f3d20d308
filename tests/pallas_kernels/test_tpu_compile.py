"""The real TPU compiler takes every op's XLA path, on one chip and inside `shard_map` over four, without copying the pool."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pallas_kernels import copy_pages, paged_attention, write_kv
from tests.device.tpu import devices
from tests.pallas_kernels.hlo import check_in_place

pytestmark = pytest.mark.tpu_compile

POOL = (16_384, 16, 16, 128)  # 8 KV heads of 128; far more than fits on the chip's own memory
WHOLE, HEADS, PAGES = PartitionSpec(), PartitionSpec(None, "tensor"), PartitionSpec(None, None, "tensor")


def compile_for(
    generation: str, chips: int, function: Any, arguments: list[tuple[Any, Any, PartitionSpec]], out: Any
) -> Any:
    """Compile `function` over the chips' own parts of (shape, dtype, partition) arguments; the first one is donated."""
    mesh = Mesh(np.asarray(devices(generation, count=chips)), ("tensor",))
    structs = [
        jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec)) for shape, dtype, spec in arguments
    ]
    specs = tuple(spec for _, _, spec in arguments)
    mapped = jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=out, check_vma=False)
    with jax.set_mesh(mesh):
        traced = jax.jit(mapped, donate_argnums=0).trace(*structs)
        return traced.lower(lowering_platforms=("tpu",)).compile()


def own_part(chips: int) -> tuple[int, ...]:
    return (*POOL[:2], POOL[2] // chips, POOL[3])


TARGETS = pytest.mark.parametrize(("generation", "chips"), [("v5e", 1), ("v6e", 1), ("v5e", 4), ("v6e", 4)])


@TARGETS
@pytest.mark.parametrize(("rows", "places"), [(32, 1), (4, 128)])
def test_a_layer_writes_and_attends(rows: int, places: int, generation: str, chips: int) -> None:
    tokens = rows * places

    def layer(kv_pages: Any, q: Any, k: Any, v: Any, slots: Any, table: Any, starts: Any, lengths: Any) -> Any:
        kv_pages = write_kv(kv_pages, k, v, slots, platform="tpu")
        q = q.reshape(rows, places, *q.shape[1:])
        out = paged_attention(q, kv_pages, table, starts, lengths, scale=128**-0.5, window=512, platform="tpu")
        return kv_pages, out.reshape(tokens, *out.shape[2:])

    compiled = compile_for(
        generation,
        chips,
        layer,
        [
            (POOL, jnp.bfloat16, PAGES),
            ((tokens, 32, 128), jnp.bfloat16, HEADS),
            ((tokens, 8, 128), jnp.bfloat16, HEADS),
            ((tokens, 8, 128), jnp.bfloat16, HEADS),
            ((tokens,), jnp.int32, WHOLE),
            ((rows, 64), jnp.int32, WHOLE),
            ((rows,), jnp.int32, WHOLE),
            ((rows,), jnp.int32, WHOLE),
        ],
        (PAGES, HEADS),
    )
    check_in_place(compiled, own_part(chips), itemsize=2)
    assert "all-" not in compiled.as_text()  # every chip has what its heads need


@TARGETS
def test_pages_are_copied(generation: str, chips: int) -> None:
    pairs = ((16,), jnp.int32, WHOLE)
    compiled = compile_for(generation, chips, copy_pages, [(POOL, jnp.bfloat16, PAGES), pairs, pairs], PAGES)
    check_in_place(compiled, own_part(chips), itemsize=2)
