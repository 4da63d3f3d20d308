"""The real TPU compiler takes encoders of every style, which write the pool in place, and steps that take from it."""

from __future__ import annotations

import jax.numpy as jnp
import pytest

from buckets import Bucket, Grid
from jaxengine.device.layers.sharding import share_layers
from jaxengine.device.models.parameters import abstract_model
from jaxengine.device.models.registry import read_config, resolve
from jaxengine.device.runtime.cache_layout import lay_out
from jaxengine.device.runtime.encoder_programs import encoder_programs
from jaxengine.device.runtime.forward_programs import forward_programs
from jaxengine.device.runtime.media_space import MediaSpace
from jaxengine.device.runtime.space import ProgramSpace
from tests.device.models.media import hearing_cases
from tests.device.models.media.cases import CASES, Fixture
from tests.quick import rare_but
from tests.targets.tpu import devices

pytestmark = [pytest.mark.jax, pytest.mark.tpu_compile, pytest.mark.slow]

TEXT, ITEMS = Bucket(8, 4), Bucket(4, 256)
STYLES = rare_but([*CASES, *hearing_cases.CASES], {"qwen2_5-vl", "qwen3-vl", "gemma3"})
"""Windows, several levels, and tokens that see each other: the others are made of the same."""


@pytest.mark.parametrize("case", STYLES)
def test_encoder_and_step_compile(case: str) -> None:
    [chip] = devices("v6e", count=1)
    config_json = (hearing_cases.load(case) if case in hearing_cases.CASES else Fixture.load(case)).config
    model_class = resolve(config_json)
    config = read_config(model_class, config_json)
    layout = share_layers([chip])
    graph, parameters = abstract_model(model_class, config, dtype="bfloat16", layout=layout, platform="tpu")
    assert graph.media is not None
    pages = lay_out(graph.cache, max_model_len=256)
    space = ProgramSpace(
        graph=graph,
        parameters=parameters,
        cache=pages,
        vocab_size=config.vocab_size,
        grid=Grid([TEXT]),
        max_num_seqs=8,
        page_size=64,
        num_pages=(64,) * len(pages.pools),
        kv_dtype=jnp.dtype(jnp.bfloat16),
        max_model_len=256,
        max_logprobs=20,
        attention_backend="auto",
        platform="tpu",
        device_layout=layout,
        media=MediaSpace(traits=graph.media, buckets=(ITEMS,), num_pages=64, page_size=16),
    )
    pool = 64 * 16 * graph.media.width * jnp.dtype(jnp.bfloat16).itemsize
    for program in encoder_programs(space):
        compiled = program.lower().compile()
        layer = " layer " in program.name
        assert ("%row_attention" in compiled.as_text()) == layer
        if program.name.endswith(" end"):
            assert compiled.memory_analysis().alias_size_in_bytes >= pool
        elif layer:
            assert compiled.memory_analysis().alias_size_in_bytes > 0
    [step] = forward_programs(space, TEXT)
    step.lower().compile(step.compiler_options)
