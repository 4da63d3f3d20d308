"""Every program of an engine on the CPU writes into what is donated and never moves it; `tests/targets` asks the same of TPUs."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from buckets import Bucket, Grid
from jaxengine.device.layers.sharding import ONE_DEVICE, share_layers
from jaxengine.device.models.parameters import abstract_model
from jaxengine.device.models.registry import read_config, resolve
from jaxengine.device.runtime.cache_layout import lay_out
from jaxengine.device.runtime.forward_programs import forward_programs
from jaxengine.device.runtime.memory import shard_bytes, shard_shape
from jaxengine.device.runtime.programs import all_programs
from jaxengine.device.runtime.space import ProgramSpace
from pallas_kernels import kv_storage_dtype
from pallas_kernels.check import pool_moves
from tests.integration.engines import LLAMA
from tests.quick import slow_but
from xla_cache import obtain
from xla_cache.key import program_key

MANY_PAGES, MANY_SLOTS = 1 << 14, 1 << 12  # none is allocated; what the programs compute in is small beside them
GRID = Grid([Bucket(1, 1), Bucket(4, 16)])


def space(dtype: str, *, devices: int = 1) -> ProgramSpace:
    model_class = resolve(LLAMA)
    config = read_config(model_class, LLAMA)
    layout = share_layers(jax.devices("cpu")[:devices]) if devices else ONE_DEVICE
    graph, parameters = abstract_model(model_class, config, dtype=jnp.dtype(dtype), layout=layout, platform="cpu")
    return ProgramSpace(
        graph=graph,
        parameters=parameters,
        cache=lay_out(graph.cache, max_model_len=256),
        vocab_size=config.vocab_size,
        grid=GRID,
        max_num_seqs=MANY_SLOTS,
        page_size=16,
        num_pages=(MANY_PAGES,),
        kv_dtype=jnp.dtype(kv_storage_dtype(dtype, platform="cpu")),
        max_model_len=256,
        max_logprobs=5,
        attention_backend="auto",
        platform="cpu",
        device_layout=layout,
    )


def test_what_drafts_read_of_a_pass_is_in_its_key() -> None:
    found = space("float32")
    read = [None, (), (0,), (1,)]
    spaces = [dataclasses.replace(found, taps=taps) for taps in read]
    assert len({program_key(forward_programs(each, Bucket(1, 1))[-1], {}).digest for each in spaces}) == len(read)


@pytest.mark.parametrize("dtype", slow_but(["bfloat16", "float32"], {"bfloat16"}))
def test_no_program_copies_the_pool(dtype: str) -> None:
    found = dataclasses.replace(space(dtype), host_blocks=(4,))
    [pages] = found.kv_pages
    touching = [program for program in all_programs(found) if program.name.startswith(("forward", "pages"))]
    assert len(touching) == len(GRID) + 2  # a forward program per bucket, and pages that come and go
    for program in touching:
        compiled, _ = obtain(program)
        moves = pool_moves(compiled, pages.shape, itemsize=found.kv_dtype.itemsize)
        assert [move for move in moves if program.donate or "not aliased" not in move] == [], program.name


@pytest.mark.parametrize("devices", slow_but([0, 2], {0}))
def test_no_program_copies_the_slots(devices: int) -> None:
    """They are handed on from step to step; `counts` are by far the largest of them, and without a mesh `logits`."""
    found = space("float32", devices=devices)
    if not devices:  # all rows are compared with all slots when tokens are noted: few of both, so that this is no pool
        found = dataclasses.replace(found, max_num_seqs=found.vocab_size // 4)
    slots = jax.tree.leaves(found.slots)
    size = sum(map(shard_bytes, slots))
    rows = found.sampling.row_counts[0]
    sampling = {name for shape in found.sampling.shapes if shape.rows == rows for name in found.sampling.names(shape)}
    assert len(sampling) == (2 if devices else 3)
    changing = [
        program for program in all_programs(found) if program.name.startswith("write") or program.name in sampling
    ]
    assert len(changing) == 4 + len(sampling)
    for program in changing:
        compiled, _ = obtain(program)
        memory = compiled.memory_analysis()
        assert memory.alias_size_in_bytes >= size, program.name
        for large in (found.slots.counts, found.slots.logits):
            if large is not None:
                assert pool_moves(compiled, shard_shape(large), itemsize=4) == [], program.name
