"""Step 3.5 as it is published, and the language model of Step 3.7, which also sees pictures."""

from __future__ import annotations

from typing import Any

import pytest

from jaxengine.device.layers.sharding import ONE_DEVICE
from jaxengine.device.models.parameters import abstract_model
from jaxengine.device.models.registry import read_config, resolve
from jaxengine.device.weights.matching import match
from jaxengine.errors import ConfigError
from tests.device.models.cases import Fixture

FULL, WINDOW = "full_attention", "sliding_attention"
PUBLISHED = {
    "architectures": ["Step3p5ForCausalLM"],
    "att_impl_type": "GQA",
    "attention_other_setting": {
        "attention_type": WINDOW,
        "head_dim": 128,
        "num_attention_groups": 8,
        "num_attention_heads": 96,
    },
    "head_dim": 128,
    "hidden_size": 4096,
    "intermediate_size": 11_264,
    "layer_types": [FULL, WINDOW, WINDOW, WINDOW, FULL, WINDOW, WINDOW],
    "max_position_embeddings": 262_144,
    "moe_intermediate_size": 1280,
    "moe_layers_enum": "3,4",
    "moe_num_experts": 288,
    "moe_router_activation": "sigmoid",
    "moe_router_scaling_factor": 3.0,
    "moe_top_k": 8,
    "need_fp32_gate": True,
    "norm_expert_weight": True,
    "num_attention_groups": 8,
    "num_attention_heads": 64,
    "num_hidden_layers": 5,
    "num_nextn_predict_layers": 2,
    "partial_rotary_factors": [0.5, 1.0, 1.0, 1.0, 0.5, 1.0, 1.0],
    "rope_scaling": {
        "factor": 2.0,
        "high_freq_factor": 32.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 131_072,
        "rope_type": "llama3",
    },
    "rope_theta": [5e6, 1e4, 1e4, 1e4, 5e6, 1e4, 1e4],
    "share_expert_dim": 1280,
    "sliding_window": 512,
    "swiglu_limits": [0.0, 0.0, 0.0, 7, 7, 0.0, 0.0],
    "swiglu_limits_shared": [0.0, 0.0, 0.0, 0.0, 16, 0.0, 0.0],
    "use_head_wise_attn_gate": True,
    "use_moe": True,
    "use_moe_router_bias": True,
    "vocab_size": 128_896,
    "yarn_only_types": [FULL],
}


def read(**changes: Any) -> Any:
    return read_config(resolve(PUBLISHED), {**PUBLISHED, **changes})


def test_published_lists_have_more_than_the_layers():
    config = read()
    assert (config.num_kv_heads, config.window_heads, config.experts.count) == (8, 96, 288)
    assert config.windows == (None, 512, 512, 512, None)
    assert (config.expert_layers, config.draft_layers) == ((3, 4), (5, 6))
    assert (config.limits[4], config.shared_limits[4]) == (7, 16)
    assert (config.rope.theta, config.rope.rotary_dim, config.rope.scaling.factor) == (5e6, 64, 2.0)
    assert (config.local_rope.theta, config.local_rope.rotary_dim, config.local_rope.scaling) == (1e4, None, None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer_types": [FULL]}, "layer_types must be a list of at least 5"),
        ({"sliding_window": None}, "which needs a sliding_window"),
        ({"yarn_only_types": [WINDOW]}, "yarn_only_types is not built"),
        ({"use_head_wise_attn_gate": False}, "use_head_wise_attn_gate=False is not built"),
    ],
)
def test_what_is_not_built_is_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        read(**changes)


def test_the_language_model_of_one_with_eyes_is_found():
    fixture = Fixture.load("step3p5")
    config = {
        "architectures": ["Step3p7ForConditionalGeneration"],
        "image_token_id": 151_679,
        "text_config": fixture.config,
        "vision_config": {"model_type": "step3p5_vision"},
    }
    names = [*fixture.shapes, "vision_model.conv1.weight", "vit_large_projector.weight"]
    model_class = resolve(config)
    read = read_config(model_class, config)
    _, parameters = abstract_model(model_class, read, dtype="bfloat16", layout=ONE_DEVICE, platform="cpu")
    assignments = match(names, model_class.WEIGHTS, parameters, read)
    assert {name for assignment in assignments for name in assignment.sources} == set(fixture.shapes)
