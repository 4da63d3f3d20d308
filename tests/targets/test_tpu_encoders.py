"""The real TPU compiler takes encoders of pictures, which write the pool of embeddings in place."""

from __future__ import annotations

import jax.numpy as jnp
import pytest

from buckets import Bucket, Grid
from jaxengine.device.layers.sharding import share_layers
from jaxengine.device.models.parameters import abstract_model
from jaxengine.device.models.registry import read_config, resolve
from jaxengine.device.runtime.cache_layout import lay_out
from jaxengine.device.runtime.encoder_programs import encoder_programs
from jaxengine.device.runtime.space import MediaSpace, ProgramSpace
from tests.device.models.media.cases import Fixture
from tests.targets.tpu import devices

pytestmark = [pytest.mark.jax, pytest.mark.tpu_compile, pytest.mark.slow]

DECODE, PICTURES = Bucket(8, 1), Bucket(4, 256)


@pytest.mark.parametrize("case", ["llava", "qwen2_5-vl"])
def test_an_encoder_compiles(case: str) -> None:
    [chip] = devices("v6e", count=1)
    config_json = Fixture.load(case).config
    model_class = resolve(config_json)
    config = read_config(model_class, config_json)
    layout = share_layers([chip])
    graph, parameters = abstract_model(model_class, config, dtype="bfloat16", layout=layout, platform="tpu")
    assert graph.media is not None
    space = ProgramSpace(
        graph=graph,
        parameters=parameters,
        cache=lay_out(graph.cache, max_model_len=256),
        vocab_size=config.vocab_size,
        grid=Grid([DECODE]),
        max_num_seqs=8,
        page_size=64,
        num_pages=(64,),
        kv_dtype=jnp.dtype(jnp.bfloat16),
        max_model_len=256,
        max_logprobs=20,
        attention_backend="auto",
        platform="tpu",
        device_layout=layout,
        media=MediaSpace(traits=graph.media, buckets=(PICTURES,), num_pages=64, page_size=16),
    )
    [program] = encoder_programs(space)
    compiled = program.lower().compile()
    pool = 64 * 16 * graph.media.width * jnp.dtype(jnp.bfloat16).itemsize
    assert compiled.memory_analysis().alias_size_in_bytes >= pool
