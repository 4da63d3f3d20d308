"""Every program of an engine on the CPU writes into the donated pool and never moves it; `tests/device` asks the same of TPUs."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from buckets import Bucket, Grid, StepShape
from jaxengine.layers.sharding import tensor_mesh
from jaxengine.models.hf import read_config
from jaxengine.models.parameters import abstract_model
from jaxengine.models.registry import resolve
from jaxengine.runtime.programs import ProgramSpace, all_programs
from pallas_kernels import kv_storage_dtype
from pallas_kernels.check import pool_moves
from tests.integration.engines import LLAMA
from xla_cache import obtain

MANY_PAGES = 1 << 14  # none is allocated; what the programs compute in is small beside them
GRID = Grid([StepShape(None, Bucket(1, 1)), StepShape(Bucket(2, 16), Bucket(4, 1))])


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_no_program_copies_the_pool(dtype: str) -> None:
    model_class = resolve(LLAMA)
    config = read_config(model_class, LLAMA, tensor_parallel_size=1)
    mesh = tensor_mesh(jax.devices("cpu")[:1])
    graph, parameters = abstract_model(model_class, config, dtype=jnp.dtype(dtype), mesh=mesh, platform="cpu")
    kv_dtype = jnp.dtype(kv_storage_dtype(dtype, platform="cpu"))
    space = ProgramSpace(
        graph=graph,
        parameters=parameters,
        cache=config.cache,
        vocab_size=config.vocab_size,
        grid=GRID,
        page_size=16,
        num_pages=MANY_PAGES,
        kv_dtype=kv_dtype,
        max_model_len=256,
        max_logprobs=5,
        attention_backend="auto",
        platform="cpu",
        mesh=mesh,
    )
    donating = [program for program in all_programs(space) if program.donate]
    assert len(donating) == len(GRID) + 1  # a forward program per shape, and copying pages
    for program in donating:
        compiled, _ = obtain(program)
        assert pool_moves(compiled, space.kv_pages.shape, itemsize=kv_dtype.itemsize) == [], program.name
