"""What MiMo-V2 reads of config.json as it is published."""

from __future__ import annotations

from typing import Any

import pytest

from jaxengine.device.models.registry import read_config, resolve
from jaxengine.errors import ConfigError

PUBLISHED = {
    "architectures": ["MiMoV2FlashForCausalLM"],
    "add_full_attention_sink_bias": False,
    "add_swa_attention_sink_bias": True,
    "attention_chunk_size": 128,
    "attention_value_scale": 0.707,
    "head_dim": 192,
    "hidden_size": 4096,
    "hybrid_layer_pattern": [0, 1, 1, 1, 0, 1],
    "intermediate_size": 16384,
    "layernorm_epsilon": 1e-5,
    "max_position_embeddings": 262144,
    "moe_intermediate_size": 2048,
    "moe_layer_freq": [0, 1, 1, 1, 1, 1],
    "n_group": 1,
    "n_routed_experts": 256,
    "n_shared_experts": None,
    "norm_topk_prob": True,
    "num_attention_heads": 64,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 6,
    "num_key_value_heads": 4,
    "partial_rotary_factor": 0.334,
    "rope_theta": 5000000,
    "routed_scaling_factor": None,
    "scoring_func": "sigmoid",
    "sliding_window": 128,
    "sliding_window_size": 128,
    "swa_head_dim": 192,
    "swa_num_attention_heads": 64,
    "swa_num_key_value_heads": 8,
    "swa_rope_theta": 10000,
    "swa_v_head_dim": 128,
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "v_head_dim": 128,
    "vocab_size": 152576,
}


def read(**changes: Any) -> Any:
    return read_config(resolve(PUBLISHED), {**PUBLISHED, **changes})


def test_the_published_keys_say_which_layers_see_a_window_and_have_experts():
    config = read()
    assert config.windows == (None, 129, 129, 129, None, 129)
    assert config.expert_layers == (1, 2, 3, 4, 5)
    assert (config.num_kv_heads, config.window_kv_heads, config.value_dim) == (4, 8, 128)
    assert (config.rope.theta, config.local_rope.theta, config.local_rope.rotary_dim) == (5e6, 1e4, 64)
    assert config.experts.routing.scale == 1.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"swa_head_dim": 128}, "swa_head_dim is not built but as in the other layers, 192"),
        ({"v_head_dim": 256, "swa_v_head_dim": 256}, "v_head_dim=256 must be at most head_dim=192"),
        ({"hybrid_layer_pattern": [0, 1]}, "hybrid_layer_pattern must be a list of 6"),
        ({"add_full_attention_sink_bias": True}, "add_full_attention_sink_bias=True is not built"),
    ],
)
def test_what_is_not_built_is_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        read(**changes)
