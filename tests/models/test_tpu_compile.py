"""The real TPU compiler takes every family's step, on one chip and on four, and writes the pages in place."""

from __future__ import annotations

import os

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jaxengine.layers.schemes import find_scheme
from jaxengine.layers.sharding import kv_sharding, model_mesh
from jaxengine.layers.step import Step
from jaxengine.models.hf import read_config
from jaxengine.models.parameters import abstract_model, merge
from jaxengine.models.registry import resolve
from jaxengine.runtime.cache_layout import lay_out
from tests.device.tpu import devices
from tests.models.cases import FAMILIES, Fixture

pytestmark = [pytest.mark.tpu_compile, pytest.mark.slow]

PAGES, PAGE_SIZE, PAGES_PER_ROW, ROWS = 32, 16, 4, 10


@pytest.mark.parametrize(("generation", "chips"), [("v6e", 1), ("v5e", 4)])
@pytest.mark.parametrize("case", FAMILIES)
@pytest.mark.parametrize("quantization", [None, "int8"])
def test_a_step_compiles_for_a_tpu(case, generation, chips, quantization):
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")  # other test processes may have libtpu loaded too
    mesh = model_mesh(devices(generation, count=chips))
    hf_config = Fixture.load(case).config
    model_class = resolve(hf_config)
    config = read_config(model_class, hf_config)
    scheme = find_scheme(quantization)
    graph, parameters = abstract_model(
        model_class, config, dtype=jnp.bfloat16, mesh=mesh, platform="tpu", scheme=scheme
    )

    def struct(*shape, dtype=jnp.int32):
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, PartitionSpec()))

    cache = lay_out(graph.cache, max_model_len=PAGES_PER_ROW * PAGE_SIZE)
    groups = len(cache.keeps)
    kv_shape = (cache.lanes * PAGES, PAGE_SIZE, 2 * cache.num_kv_heads, cache.head_dim)
    kv_pages = jax.ShapeDtypeStruct(kv_shape, jnp.bfloat16, sharding=kv_sharding(mesh))
    step = Step(
        positions=struct(40),
        page_table=struct(groups, ROWS, PAGES_PER_ROW),
        offsets=struct(ROWS + 1),
        starts=struct(ROWS),
        slots=struct(groups, 40),
        places=cache.places,
        num_pages=PAGES,
        page_size=PAGE_SIZE,
        attention_backend="xla",
    )

    def forward(arrays, kv_pages, tokens, step):
        model = merge(graph, arrays)
        hidden, kv_pages = model(tokens, kv_pages, step)
        return model.logits(hidden), kv_pages

    with jax.set_mesh(mesh):
        traced = jax.jit(forward, donate_argnums=1).trace(tuple(parameters.values()), kv_pages, struct(40), step)
        compiled = traced.lower(lowering_platforms=("tpu",)).compile()
    pool = kv_pages.size * 2 // mesh.size
    assert compiled.memory_analysis().alias_size_in_bytes >= pool
    logits = traced.out_info[0]
    assert (logits.shape, logits.dtype) == ((40, config.vocab_size), jnp.float32)
    text = compiled.as_text()
    assert "f64" not in text
    assert "all-gather" not in text
    assert ("all-reduce" in text) == (chips > 1)
