"""The real TPU compiler takes Whisper-large-v3: its encoder writes pages in place, and its decoder reads them."""

from __future__ import annotations

import jax.numpy as jnp
import pytest

from buckets import Bucket, Grid
from jaxengine.device.layers.sharding import share_layers
from jaxengine.device.models.parameters import abstract_model
from jaxengine.device.models.registry import read_config, resolve
from jaxengine.device.runtime.alignment import lengths, programs_of
from jaxengine.device.runtime.cache_layout import lay_out
from jaxengine.device.runtime.encoder_programs import encoder_programs
from jaxengine.device.runtime.forward_programs import forward_programs
from jaxengine.device.runtime.media_space import MediaSpace
from jaxengine.device.runtime.space import ProgramSpace
from pallas_kernels.check import pool_moves, pool_sized_moves
from tests.quick import rare_but
from tests.targets.tpu import devices

pytestmark = [pytest.mark.jax, pytest.mark.tpu_compile, pytest.mark.slow]

LARGE_V3 = {
    "architectures": ["WhisperForConditionalGeneration"],
    "model_type": "whisper",
    "vocab_size": 51_866,
    "num_mel_bins": 128,
    "d_model": 1280,
    "encoder_layers": 32,
    "encoder_attention_heads": 20,
    "encoder_ffn_dim": 5120,
    "decoder_layers": 32,
    "decoder_attention_heads": 20,
    "decoder_ffn_dim": 5120,
    "max_source_positions": 1500,
    "max_target_positions": 448,
    "is_encoder_decoder": True,
    "alignment_heads": [[0, 3], [1, 0], [1, 19]],
}
"""Its config.json, as published, without what generation reads but for heads of the two layers that are compiled."""
DECODE, SOUNDS = Bucket(16, 1), Bucket(1, 1500)
PAGES = 1 + 16 * 94


def space(generation: str, layers: int) -> ProgramSpace:
    """Of so many layers, for sixteen sounds."""
    [chip] = devices(generation, count=1)
    config_json = {**LARGE_V3, "encoder_layers": layers, "decoder_layers": layers}
    model_class = resolve(config_json)
    config = read_config(model_class, config_json)
    layout = share_layers([chip])
    graph, parameters = abstract_model(model_class, config, dtype="bfloat16", layout=layout, platform="tpu")
    assert graph.media is not None
    pages = lay_out(graph.cache, max_model_len=448)
    return ProgramSpace(
        graph=graph,
        parameters=parameters,
        cache=pages,
        vocab_size=config.vocab_size,
        grid=Grid([DECODE]),
        max_num_seqs=16,
        page_size=64,
        num_pages=(256,),
        kv_dtype=jnp.dtype(jnp.bfloat16),
        max_model_len=448,
        max_logprobs=20,
        attention_backend="auto",
        platform="tpu",
        device_layout=layout,
        media=MediaSpace(traits=graph.media, buckets=(SOUNDS,), num_pages=PAGES, page_size=16),
    )


@pytest.mark.parametrize("generation", rare_but(["v6e", "v5e"], {"v6e"}))
def test_encoder_and_decoder_leave_the_pages_where_they_are(generation: str) -> None:
    whole = space(generation, layers=2)
    crossed = whole.crossed
    assert crossed is not None
    *without_pages, end = encoder_programs(whole)
    for program in without_pages:
        program.lower().compile()
    for program in (end, *forward_programs(whole, DECODE)):
        compiled = program.lower().compile()
        assert pool_moves(compiled, crossed.shape, itemsize=2) == [], program.name
        text = compiled.as_text()
        assert "paged_attention" in text or program.name.startswith("encode")


@pytest.mark.parametrize("length", rare_but([448, 128], {448}))
def test_texts_are_aligned_without_a_copy_of_the_pages(length: int) -> None:
    whole = space("v6e", layers=2)
    assert lengths(whole) == (128, 256, 448)
    assert whole.crossed is not None
    for program in programs_of(whole, length):
        compiled = program.lower().compile()
        assert pool_sized_moves(compiled.as_text(), whole.crossed.shape) == [], program.name
        assert compiled.memory_analysis().temp_size_in_bytes < 400 << 20, program.name
