"""Published configurations of DeepSeek V3.2, GLM-5 and Kimi K2.5, and what of such is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from jaxengine.device.layers.sharding import ONE_DEVICE
from jaxengine.device.models.parameters import abstract_model
from jaxengine.device.models.registry import read_config, resolve
from jaxengine.device.weights.matching import match
from jaxengine.errors import CheckpointError, ConfigError
from tests.device.models.cases import Fixture

GLM_5 = Fixture.load("glm-5").config
KIMI_K25 = {
    "architectures": ["KimiK25ForConditionalGeneration"],
    "auto_map": {"AutoConfig": "configuration_kimi_k25.KimiK25Config"},
    "bos_token_id": 163584,
    "dtype": "bfloat16",
    "eos_token_id": 163585,
    "ignore_index": -100,
    "media_placeholder_token_id": 163605,
    "model_type": "kimi_k25",
    "pad_token_id": 163839,
    "text_config": {
        "architectures": ["DeepseekV3ForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "aux_loss_alpha": 0.001,
        "ep_size": 1,
        "first_k_dense_replace": 1,
        "hidden_act": "silu",
        "hidden_size": 7168,
        "intermediate_size": 18432,
        "kv_lora_rank": 512,
        "max_position_embeddings": 262144,
        "model_type": "kimi_k2",
        "moe_intermediate_size": 2048,
        "moe_layer_freq": 1,
        "n_group": 1,
        "n_routed_experts": 384,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_attention_heads": 64,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 61,
        "num_key_value_heads": 64,
        "num_nextn_predict_layers": 0,
        "pretraining_tp": 1,
        "q_lora_rank": 1536,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "factor": 64.0,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "original_max_position_embeddings": 4096,
            "type": "yarn",
        },
        "rope_theta": 50000.0,
        "routed_scaling_factor": 2.827,
        "scoring_func": "sigmoid",
        "seq_aux": True,
        "tie_word_embeddings": False,
        "topk_group": 1,
        "topk_method": "noaux_tc",
        "use_cache": True,
        "v_head_dim": 128,
        "vocab_size": 163840,
    },
    "tie_word_embeddings": False,
    "use_unified_vision_chunk": True,
    "video_placeholder": "<|kimi_k25_video_placeholder|>",
    "vision_config": {"mm_hidden_size": 1152, "vt_num_hidden_layers": 27},
}


def read(config: Any) -> Any:
    return read_config(resolve(config), config)


@pytest.mark.parametrize(
    ("name", "heads", "interleaved", "experts"),
    [("deepseek-ai--DeepSeek-V3.2", 64, False, range(3, 61)), ("zai-org--GLM-5", 32, True, range(3, 78))],
)
def test_published_sparse_attention_is_read(shared, name, heads, interleaved, experts):
    config = read(json.loads((shared / "configs" / "hf" / f"{name}.json").read_text()))
    indexer = config.attention.indexer
    assert (indexer.heads, indexer.size, indexer.count, indexer.rotary_dim) == (heads, 128, 2048, 64)
    assert indexer.interleaved == interleaved
    assert config.expert_layers == tuple(experts)
    assert config.draft_layers == (experts.stop,)


@pytest.mark.parametrize(
    ("keys", "takers"),
    [
        ({"indexer_types": ["full", "shared", "shared"]}, (1, 2)),
        ({"index_topk_pattern": "FSF"}, (1,)),
        ({"index_topk_pattern": ["full", "shared", "full"], "index_topk_freq": 1}, (1,)),
        ({"index_topk_freq": 2}, (2,)),
        ({"index_topk_freq": 4, "index_skip_topk_offset": 1}, (1, 2)),
        ({}, ()),
    ],
)
def test_layers_that_share_a_choice_are_read(keys, takers):
    config = read({**GLM_5, "indexer_types": None, **keys})
    assert config.takers == takers
    shapes = [config.attention_of(layer) for layer in range(3)]
    assert tuple(layer for layer, shape in enumerate(shapes) if shape.takes) == takers
    assert tuple(layer + 1 for layer, shape in enumerate(shapes) if shape.gives) == takers
    assert [shape.indexer is None for shape in shapes] == [layer in takers for layer in range(3)]


def test_published_kimi_k25_is_a_kimi_k2():
    config = read(KIMI_K25)
    assert (config.num_layers, config.experts.count, config.attention.indexer) == (61, 384, None)
    assert (config.rope.scaling.factor, config.dtype, config.tie_word_embeddings) == (64.0, "bfloat16", False)


def test_what_sees_pictures_is_left_unread_and_nothing_else():
    fixture = Fixture.load("kimi-k2.5")
    model_class = resolve(fixture.config)
    config = read(fixture.config)
    _, parameters = abstract_model(model_class, config, dtype="bfloat16", layout=ONE_DEVICE, platform="cpu")
    pictures = ["vision_tower.encoder.blocks.0.norm0.weight", "mm_projector.proj.0.weight"]
    assignments = match([*fixture.shapes, *pictures], model_class.WEIGHTS, parameters, config)
    assert {name for assignment in assignments for name in assignment.sources} == set(fixture.shapes)
    with pytest.raises(CheckpointError, match="sound_tower"):
        match([*fixture.shapes, "sound_tower.weight"], model_class.WEIGHTS, parameters, config)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"indexer_types": ["shared", "full", "full"]},
            "indexer_types begins with 'shared', and the first layer has no",
        ),
        ({"indexer_types": ["full", "half", "full"]}, "indexer_types must name full or shared for each of 3 layers"),
        ({"indexer_types": None, "index_topk_pattern": "FS"}, "index_topk_pattern must name full or shared"),
        ({"indexer_types": None, "index_topk_freq": 2, "index_skip_topk_offset": 0}, "index_skip_topk_offset is 0"),
        ({"index_topk": 0}, "index_topk must be at least 1"),
        ({"index_head_dim": 4}, "index_head_dim=4 is less than the qk_rope_head_dim=8 channels that turn"),
        ({"q_lora_rank": None}, "q_lora_rank is null"),
        ({"layer_types": ["full_attention"] * 3}, "layer_types must name one of indexed_attention"),
    ],
)
def test_what_an_indexer_cannot_be_is_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        read({**GLM_5, **changes})
