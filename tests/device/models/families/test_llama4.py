"""Llama 4: published configurations, what is refused, and the language model of a checkpoint that also sees pictures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from jaxengine.device.layers.sharding import ONE_DEVICE
from jaxengine.device.models.parameters import abstract_model
from jaxengine.device.models.registry import read_config, resolve
from jaxengine.device.weights.matching import match
from jaxengine.errors import ConfigError
from tests.device.models.cases import Fixture

OUTER = {
    "architectures": ["Llama4ForConditionalGeneration"],
    "model_type": "llama4",
    "torch_dtype": "bfloat16",
    "boi_token_index": 200_080,
    "eoi_token_index": 200_081,
    "image_token_index": 200_092,
    "vision_config": {"model_type": "llama4_vision_model"},
}
SCOUT = {
    "attention_bias": False,
    "attention_chunk_size": 8192,
    "attn_scale": 0.1,
    "attn_temperature_tuning": 4,
    "bos_token_id": 200_000,
    "eos_token_id": [200_001, 200_007, 200_008],
    "floor_scale": 8192,
    "for_llm_compressor": False,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 5120,
    "interleave_moe_layer_step": 1,
    "intermediate_size": 8192,
    "intermediate_size_mlp": 16_384,
    "max_position_embeddings": 10_485_760,
    "model_type": "llama4_text",
    "no_rope_layers": [],
    "num_attention_heads": 40,
    "num_experts_per_tok": 1,
    "num_hidden_layers": 48,
    "num_key_value_heads": 8,
    "num_local_experts": 16,
    "output_router_logits": False,
    "pad_token_id": 200_018,
    "rms_norm_eps": 1e-5,
    "rope_scaling": {
        "factor": 16.0,
        "high_freq_factor": 1.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500_000.0,
    "router_jitter_noise": 0.0,
    "use_qk_norm": True,
    "vocab_size": 202_048,
}


def read(**changes: Any) -> Any:
    config = {**OUTER, "text_config": {**SCOUT, **changes}}
    return read_config(resolve(config), config)


def test_the_published_configuration_is_read():
    config = read()
    assert config.chunks == config.windows == (8192, 8192, 8192, None) * 12
    assert config.rotary == (True, True, True, False) * 12
    assert (config.expert_layers, config.shared_size, config.mlp_size) == (tuple(range(48)), 8192, 16_384)
    assert (config.temperature.floor, config.temperature.share, config.qk_norm) == (8192.0, 0.1, True)
    frequencies = config.rope.frequencies()
    plain = 500_000.0 ** (-np.arange(64) / 64)
    turns = 8192 * plain / (2 * np.pi)
    np.testing.assert_allclose(frequencies, np.where(turns > 1, plain, plain / 16), rtol=1e-6)


def test_maverick_has_experts_in_every_other_layer():
    config = read(interleave_moe_layer_step=2, num_local_experts=128, rope_scaling=None, use_qk_norm=False)
    assert config.expert_layers == tuple(range(1, 48, 2))
    assert config.rope.scaling is None


def test_chunks_give_memory_back_as_windows_do():
    config = read()
    graph, _ = abstract_model(resolve(OUTER), config, dtype="bfloat16", layout=ONE_DEVICE, platform="cpu")
    windows = [kept.window for keeps in graph.cache for kept in keeps]
    assert (len(windows), windows.count(None), windows.count(8192)) == (48, 12, 36)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"moe_layers": [48]}, "moe_layers must be a list of numbers of the 48 layers"),
        ({"no_rope_layers": [1, 2]}, "no_rope_layers must be a list of 1"),
        ({"layer_types": ["sliding_attention"] * 48}, "must name one of chunked_attention, full_attention"),
        ({"num_experts_per_tok": 17}, "num_experts_per_tok=17 is more experts than there are, 16"),
        ({"attn_temperature_tuning": "yes"}, "attn_temperature_tuning must be true or false, got 'yes'"),
        ({"moon_phase": 3}, "moon_phase=3 is a key that it does not read"),
    ],
)
def test_what_is_not_built_is_refused(changes: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        read(**changes)


def test_the_language_model_of_a_larger_checkpoint_has_its_place():
    fixture = Fixture.load("llama4")
    config = {**OUTER, "text_config": dict(fixture.config)}
    model_class = resolve(config)
    found = replace(read_config(model_class, config), tower=None)
    _, parameters = abstract_model(model_class, found, dtype="bfloat16", layout=ONE_DEVICE, platform="cpu")
    names = [f"language_model.{name}" for name in fixture.shapes]
    pictures = ["vision_model.class_embedding", "multi_modal_projector.linear_1.weight"]
    assignments = match([*names, *pictures], model_class.WEIGHTS, parameters, found)
    assert {name for assignment in assignments for name in assignment.sources} == set(names)
