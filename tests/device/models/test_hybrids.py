"""What hybrids read of config.json, and what they refuse by name."""

from __future__ import annotations

import math
from typing import Any

import pytest

from jaxengine.device.layers.sharding import share_layers
from jaxengine.device.models.registry import read_config, resolve
from jaxengine.errors import ConfigError
from tests.device.models.cases import Fixture

BAMBA, FALCON, JAMBA = "bamba", "falcon-h1", "jamba"
GRANITE, NEXT, NEMOTRON, MAMBA, KIMI = "granite-hybrid", "qwen3-next", "nemotron-h", "mamba2", "kimi-linear"
KIMI_LINEAR_48B = {
    "architectures": ["KimiLinearForCausalLM"],
    "auto_map": {"AutoConfig": "configuration_kimi.KimiLinearConfig"},
    "first_k_dense_replace": 1,
    "head_dim": 72,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "kv_lora_rank": 512,
    "linear_attn_config": {
        "full_attn_layers": [4, 8, 12, 16, 20, 24, 27],
        "head_dim": 128,
        "kda_layers": [1, 2, 3, 5, 6, 7, 9, 10, 11, 13, 14, 15, 17, 18, 19, 21, 22, 23, 25, 26],
        "num_heads": 32,
        "short_conv_kernel_size": 4,
    },
    "mla_use_nope": True,
    "model_max_length": 1_048_576,
    "moe_layer_freq": 1,
    "moe_router_activation_func": "sigmoid",
    "num_attention_heads": 32,
    "num_expert_group": 1,
    "num_experts": 256,
    "num_experts_per_token": 8,
    "num_hidden_layers": 27,
    "num_nextn_predict_layers": 0,
    "q_lora_rank": None,
    "rope_scaling": None,
    "rope_theta": 10_000.0,
    "use_grouped_topk": True,
    "vocab_size": 163_840,
}
NEMOTRON_56B = {
    "architectures": ["NemotronHForCausalLM"],
    "attention_head_dim": 128,
    "auto_map": {"AutoConfig": "configuration_nemotron_h.NemotronHConfig"},
    "chunk_size": 128,
    "hidden_size": 8192,
    "hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-"
    + "M-M-M-M-M*-" * 5
    + "M-M-M-M-M-",
    "intermediate_size": 32_768,
    "mamba_num_heads": 256,
    "mlp_hidden_act": "relu2",
    "num_attention_heads": 64,
    "num_hidden_layers": 118,
    "rms_norm_eps": 1e-5,
    "ssm_state_size": 256,
    "time_step_limit": [0.0, math.inf],
    "time_step_rank": 512,
    "torch_dtype": "bfloat16",
    "vocab_size": 131_072,
}


def read(case: str, **changes: Any) -> Any:
    config = {**Fixture.load(case).config, **changes}
    return read_config(resolve(config), {name: value for name, value in config.items() if value != "absent"})


@pytest.mark.parametrize(
    ("case", "changes", "message"),
    [
        (GRANITE, {"layer_types": ["mamba", "attention"]}, "layer_types must name one of"),
        (GRANITE, {"layers_block_type": ["attention"] * 3}, "layer_types and layers_block_type are the same setting"),
        (GRANITE, {"mamba_d_head": 24}, "mamba_n_heads=16 of mamba_d_head=24 are not the 128 channels"),
        (GRANITE, {"mamba_n_groups": 3}, "16 heads of a state space cannot share 3 groups"),
        (GRANITE, {"position_embedding_type": "alibi"}, "position_embedding_type='alibi' is not built"),
        (GRANITE, {"time_step_limit": [2.0, 0.1]}, "time_step_limit must be two numbers of at least 0, in order"),
        (NEMOTRON, {"hybrid_override_pattern": "M-X"}, "must be a text of M, \\*, -, E, one for each layer, got 'M-X'"),
        (NEMOTRON, {"num_hidden_layers": 4}, "num_hidden_layers=4, and 5 layers are described"),
        (MAMBA, {"head_dim": 16}, "num_heads=16 of head_dim=16 are not the 128 channels of expand times hidden_size"),
        (KIMI, {"mla_use_nope": False}, "mla_use_nope=False is not built"),
        (KIMI, {"num_expert_group": 3}, "8 experts must be groups of one size"),
        (KIMI, {"linear_attn_config": {"full_attn_layers": [2], "kda_layers": [1]}}, "each of the layers 1 to 3"),
        (KIMI, {"mlp_layer_types": ["dense"]}, "must name dense or sparse for each of 3 layers"),
        (MAMBA, {"rms_norm": False}, "rms_norm=False is not built"),
        (NEXT, {"linear_num_value_heads": 12}, "linear_num_value_heads=12 cannot share linear_num_key_heads=8"),
        (BAMBA, {"attn_rotary_emb": 8}, "attn_rotary_emb=8 channels of a head turn, and partial_rotary_factor"),
        (BAMBA, {"attn_layer_indices": [3]}, "must be a list of numbers of the 3 layers"),
        (FALCON, {"mlp_multipliers": [1.0]}, "mlp_multipliers must be a list of 2 numbers"),
        (FALCON, {"mamba_d_ssm": 120}, "mamba_n_heads=16 of mamba_d_head=8 are not the 120 channels of mamba_d_ssm"),
        (JAMBA, {"attn_layer_offset": 3}, "attn_layer_offset=3 must be at least 0 and below attn_layer_period=3"),
        (NEXT, {"mamba_ssm_dtype": "bfloat16"}, "mamba_ssm_dtype='bfloat16' is not built"),
    ],
)
def test_what_is_not_built_is_refused(case, changes, message):
    with pytest.raises(ConfigError, match=message):
        read(case, **changes)


@pytest.mark.parametrize("most", ["Infinity", "inf", math.inf, {"__float__": "Infinity"}])
def test_infinity_is_read_in_every_spelling(most):
    assert read(GRANITE, time_step_limit=[0.0, most]).state_space.step_limits == (0.0, math.inf)
    assert read(GRANITE, time_step_limit="absent").state_space.step_limits == (0.0, math.inf)


def test_a_hybrid_may_have_no_layer_of_attention():
    assert read(NEXT, layer_types="absent").recurrent == (0, 1, 2)
    assert read(GRANITE, layer_types=["mamba"] * 3).recurrent == (0, 1, 2)


def test_a_published_pattern_says_what_each_layer_is():
    config = read_config(resolve(NEMOTRON_56B), NEMOTRON_56B)
    assert (config.num_layers, config.head_dim, config.experts) == (118, 128, None)
    assert tuple(len(config.of_kind(kind)) for kind in ("recurrent", "full", "mlp")) == (54, 10, 54)
    assert config.of_kind("full")[:2] == (7, 18)


def test_kimi_linear_numbers_its_layers_from_one():
    config = read_config(resolve(KIMI_LINEAR_48B), KIMI_LINEAR_48B)
    assert (config.recurrent[:4], len(config.recurrent), config.num_layers) == ((0, 1, 2, 4), 20, 27)
    assert (config.expert_layers, config.max_position_embeddings) == (tuple(range(1, 27)), 1_048_576)
    assert (config.attention.latent, config.attention.rope, config.delta_net.decaying) == (576, None, (32, 128))


def test_a_model_of_states_alone_serves_whatever_memory_holds():
    assert read(MAMBA, max_position_embeddings="absent").max_position_embeddings == 2**20


def test_every_fourth_layer_attends_unless_told_otherwise():
    assert read(NEXT, layer_types="absent", num_hidden_layers=9).recurrent == (0, 1, 2, 4, 5, 6, 8)
    assert read(NEXT, layer_types="absent", full_attention_interval=2).recurrent == (0, 2)


def test_devices_that_would_cut_a_head_of_keys_or_two_groups_are_refused():
    import jax

    layout = share_layers(jax.devices()[:8])
    with pytest.raises(ConfigError, match="4 heads of keys in layers of linear attention must split evenly"):
        read(NEXT, linear_num_key_heads=4).check_layout(layout)
    with pytest.raises(ConfigError, match="24 heads must split evenly, and 3 groups too"):
        read(GRANITE, mamba_n_heads=24, mamba_n_groups=3, mamba_expand=3, mamba_d_head="auto").check_layout(layout)
