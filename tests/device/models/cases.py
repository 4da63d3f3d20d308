"""Small random models, one per switch of each family: their configurations, and weights made from a seed."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

FIXTURES = Path(__file__).parent / "fixtures"
VOCAB = 96
PROMPTS = [[3, 17, 60, 8, 41, 2, 90, 33, 5, 71, 12, 64, 28, 9, 50], [77, 1, 14, 36, 14, 80], [42]]
NUM_GREEDY = 64

_ROTARY = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_LLAMA3 = {"factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
_YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32}
_SLIDING = {"num_hidden_layers": 3, "use_sliding_window": True, "sliding_window": 7}
_MIXED = ["sliding_attention", "full_attention", "sliding_attention"]
_MOE = _ROTARY | {"head_dim": 16, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_LATENT = (
    _ROTARY
    | {"num_hidden_layers": 3, "num_key_value_heads": 8, "n_routed_experts": 8, "num_experts_per_tok": 2}
    | {"moe_intermediate_size": 32, "kv_lora_rank": 40, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 16}
)
_SPARSE = _LATENT | {"q_lora_rank": 24, "index_n_heads": 16, "index_head_dim": 20, "index_topk": 6}
_KIMI_LINEAR = {
    **{name: value for name, value in _LATENT.items() if name not in ("n_routed_experts", "num_experts_per_tok")},
    "num_experts": 8,
    "num_experts_per_token": 2,
    "linear_head_dim": 12,
    "linear_num_heads": 8,
    "pad_token_id": 0,
}
_GEMMA3 = _ROTARY | {"num_hidden_layers": 7, "head_dim": 16, "query_pre_attn_scalar": 24, "sliding_window": 7}
_GEMMA4 = (
    _ROTARY
    | {"num_hidden_layers": 3, "layer_types": _MIXED, "sliding_window": 7, "head_dim": 8}
    | {"global_head_dim": 16}
)
_GEMMA2 = (
    _ROTARY
    | {"head_dim": 16, "query_pre_attn_scalar": 24, "sliding_window": 7}
    | {
        "attn_logit_softcapping": 4.0,
        "final_logit_softcapping": 6.0,
    }
)
_RWKV7 = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "head_dim": 8,
    "decay_low_rank_dim": 12,
    "a_low_rank_dim": 10,
    "gate_low_rank_dim": 20,
    "v_low_rank_dim": 6,
    "norm_first": True,
    "norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_LFM2 = _ROTARY | {"num_hidden_layers": 5, "pad_token_id": 0, "block_multiple_of": 24}
_GRANITE_HYBRID = (
    _ROTARY
    | {"num_hidden_layers": 3, "num_local_experts": 6, "shared_intermediate_size": 48}
    | {"embedding_multiplier": 3.0, "attention_multiplier": 0.5, "residual_multiplier": 0.4, "logits_scaling": 0.4}
    | {"mamba_n_heads": 16, "mamba_d_state": 12}
)
_FALCON_H1 = (
    _ROTARY
    | {"mamba_n_heads": 16, "mamba_d_ssm": 128, "mamba_d_state": 12, "mamba_n_groups": 2, "pad_token_id": 0}
    | {"embedding_multiplier": 3.0, "lm_head_multiplier": 1.5, "key_multiplier": 0.4, "attention_in_multiplier": 1.3}
    | {"attention_out_multiplier": 0.9, "ssm_in_multiplier": 1.25, "ssm_out_multiplier": 0.7}
    | {"mlp_multipliers": [0.9, 0.6], "ssm_multipliers": [0.4, 0.7, 1.3, 0.8, 0.6]}
)
_NEMOTRON_H = {
    **{name: value for name, value in _ROTARY.items() if name != "num_hidden_layers"},
    "head_dim": 16,
    "mamba_num_heads": 16,
    "mamba_head_dim": 8,
    "n_groups": 2,
    "ssm_state_size": 12,
    # transformers 5.23 bounds steps by the one in prompts, and reads the other from nowhere
    "time_step_min": 0.1,
    "time_step_limit": [0.1, 100.0],
    "n_routed_experts": 8,
    "moe_intermediate_size": 40,
    "moe_shared_expert_intermediate_size": 48,
    "pad_token_id": 0,
}
_DELTA = _ROTARY | {
    "head_dim": 16,
    "linear_num_key_heads": 8,
    "linear_key_head_dim": 12,
    "linear_num_value_heads": 16,
    "linear_value_head_dim": 8,
}
_LLAMA4 = _ROTARY | {
    "head_dim": 16,
    "intermediate_size": 40,
    "intermediate_size_mlp": 96,
    "num_local_experts": 8,
    "attention_chunk_size": 16,
    "floor_scale": 8,
    "pad_token_id": 0,
}
_NEOX = {name: value for name, value in _ROTARY.items() if name != "num_key_value_heads"}
_GPT2 = {
    "vocab_size": VOCAB,
    "n_positions": 128,
    "n_embd": 64,
    "n_layer": 2,
    "n_head": 8,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_CLASSIC = {"vocab_size": VOCAB, "hidden_size": 64, "bos_token_id": 1, "eos_token_id": 2}
_FALCON = _CLASSIC | {"num_hidden_layers": 2, "num_attention_heads": 8, "max_position_embeddings": 128}
_OPT = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "ffn_dim": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "max_position_embeddings": 128,
}

CASES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "llama": ("LlamaForCausalLM", _ROTARY),
    "llama-tied-biases-mqa": (
        "LlamaForCausalLM",
        _ROTARY
        | {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True, "num_key_value_heads": 1}
        | {"hidden_act": "gelu", "rms_norm_eps": 1e-5},
    ),
    "llama-mha-head-dim-linear": (
        "LlamaForCausalLM",
        _ROTARY
        | {"head_dim": 12, "num_key_value_heads": 8, "vocab_size": 97}
        | {"rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 2.5}},
    ),
    "llama-llama3": (
        "LlamaForCausalLM",
        _ROTARY | {"rope_parameters": {"rope_type": "llama3", "rope_theta": 10000.0, **_LLAMA3}},
    ),
    "llama-yarn": ("LlamaForCausalLM", _ROTARY | {"rope_parameters": _YARN}),
    "llama-yarn-mscale": (
        "LlamaForCausalLM",
        _ROTARY
        | {"rope_parameters": _YARN | {"mscale": 0.7, "mscale_all_dim": 0.4, "truncate": False, "beta_fast": 16.0}},
    ),
    "llama4": (
        "Llama4ForCausalLM",
        _LLAMA4 | {"num_hidden_layers": 4, "interleave_moe_layer_step": 2, "attention_bias": True},
    ),
    "llama4-two-experts-without-norms": (
        "Llama4ForCausalLM",
        _LLAMA4
        | {"num_hidden_layers": 3, "moe_layers": [1, 2], "num_experts_per_tok": 2, "use_qk_norm": False}
        | {"no_rope_layers": [1, 0, 1], "layer_types": ["full_attention", "chunked_attention", "chunked_attention"]}
        | {"rope_parameters": {"rope_type": "llama3", "rope_theta": 500.0, **_LLAMA3, "high_freq_factor": 1.0}}
        | {"attn_temperature_tuning": False, "attention_chunk_size": 8},
    ),
    "mamba2": (
        "Mamba2ForCausalLM",
        _CLASSIC
        | {"num_hidden_layers": 2, "num_heads": 16, "head_dim": 8, "n_groups": 2, "state_size": 12}
        | {"use_bias": True, "time_step_limit": [0.1, 2.0], "max_position_embeddings": 128},
    ),
    "rwkv7": ("RWKV7ForCausalLM", _RWKV7),
    "rwkv7-no-first-norm": ("RWKV7ForCausalLM", _RWKV7 | {"norm_first": False, "num_hidden_layers": 2}),
    "bamba": (
        "BambaForCausalLM",
        _ROTARY
        | {"num_hidden_layers": 3, "attn_layer_indices": [1], "mamba_n_heads": 16, "mamba_d_state": 12}
        | {"mamba_n_groups": 2, "mamba_proj_bias": True, "attention_bias": True, "mlp_bias": True},
    ),
    "falcon-h1": (
        "FalconH1ForCausalLM",
        _FALCON_H1 | {"mamba_proj_bias": True, "attention_bias": True, "mlp_bias": True, "projectors_bias": True},
    ),
    "falcon-h1-norms": (
        "FalconH1ForCausalLM",
        _FALCON_H1 | {"mamba_rms_norm": True, "mamba_norm_before_gate": False, "time_step_limit": [0.1, 2.0]},
    ),
    "falcon-h1-norms-first": (
        "FalconH1ForCausalLM",
        _FALCON_H1 | {"mamba_rms_norm": True, "mamba_d_ssm": 96, "tie_word_embeddings": True},
    ),
    "jamba": (
        "JambaForCausalLM",
        _ROTARY
        | {"num_hidden_layers": 4, "attn_layer_period": 3, "attn_layer_offset": 1, "mamba_d_state": 8}
        | {"num_experts": 6, "expert_layer_offset": 0, "mamba_proj_bias": True, "mamba_dt_rank": 6, "pad_token_id": 0},
    ),
    "mamba": (
        "MambaForCausalLM",
        _CLASSIC
        | {"num_hidden_layers": 2, "state_size": 12, "use_bias": True, "tie_word_embeddings": False}
        | {"max_position_embeddings": 128},
    ),
    "falcon-mamba": (
        "FalconMambaForCausalLM",
        _CLASSIC
        | {"num_hidden_layers": 2, "use_bias": True, "time_step_rank": 6, "tie_word_embeddings": False}
        | {"max_position_embeddings": 128},
    ),
    "mistral-full": ("MistralForCausalLM", _ROTARY | {"sliding_window": None, "head_dim": 16}),
    "mistral-window": ("MistralForCausalLM", _ROTARY | {"sliding_window": 7}),
    "qwen2": ("Qwen2ForCausalLM", _ROTARY | {"tie_word_embeddings": True}),
    "qwen2-max-window-layers": ("Qwen2ForCausalLM", _ROTARY | _SLIDING | {"max_window_layers": 1}),
    "qwen2-layer-types": ("Qwen2ForCausalLM", _ROTARY | _SLIDING | {"layer_types": _MIXED}),
    "qwen3": ("Qwen3ForCausalLM", _ROTARY | {"head_dim": 16, "tie_word_embeddings": True}),
    "qwen3-biases-windows": (
        "Qwen3ForCausalLM",
        _ROTARY | _SLIDING | {"head_dim": 8, "attention_bias": True, "max_window_layers": 1},
    ),
    "qwen3-moe": ("Qwen3MoeForCausalLM", _MOE | {"norm_topk_prob": True}),
    "qwen3-moe-some-layers": (
        "Qwen3MoeForCausalLM",
        _MOE | {"num_hidden_layers": 4, "decoder_sparse_step": 2, "mlp_only_layers": [3], "attention_bias": True},
    ),
    "qwen3-next": (
        "Qwen3NextForCausalLM",
        _DELTA
        | {"num_hidden_layers": 3, "layer_types": ["linear_attention", "full_attention", "linear_attention"]}
        | {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
        | {"shared_expert_intermediate_size": 48, "mlp_only_layers": [1], "attention_bias": True},
    ),
    "qwen3_5": (
        "Qwen3_5ForCausalLM",
        _DELTA
        | {"num_hidden_layers": 3, "layer_types": ["linear_attention", "full_attention", "linear_attention"]}
        | {"attention_bias": True, "linear_value_head_dim": 12, "linear_conv_kernel_dim": 3},
    ),
    "qwen3_5-moe": (
        "Qwen3_5MoeForCausalLM",
        {name: value for name, value in _DELTA.items() if name != "intermediate_size"}
        | {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"], "attention_bias": True}
        | {"num_experts": 8, "num_experts_per_tok": 2}
        | {"moe_intermediate_size": 40, "shared_expert_intermediate_size": 48},
    ),
    "gemma3": ("Gemma3ForCausalLM", _GEMMA3),
    "gemma3-biases-untied-linear": (
        "Gemma3ForCausalLM",
        _GEMMA3
        | {"num_hidden_layers": 3, "layer_types": _MIXED, "attention_bias": True, "tie_word_embeddings": False}
        | {
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            }
        },
    ),
    "gemma4-experts": (
        "Gemma4ForCausalLM",
        _GEMMA4
        | {
            "hidden_size_per_layer_input": 0,
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 1,
            "global_head_dim": 24,
        }
        | {"enable_moe_block": True, "num_experts": 6, "top_k_experts": 2, "moe_intermediate_size": 32}
        | {"tie_word_embeddings": False, "attention_bias": True, "final_logit_softcapping": 6.0},
    ),
    "gemma4-shared": (
        "Gemma4ForCausalLM",
        _GEMMA4
        | {"num_hidden_layers": 5, "layer_types": ["sliding_attention", "full_attention"] * 2 + ["full_attention"]}
        | {"num_kv_shared_layers": 3, "use_double_wide_mlp": True, "attention_bias": True}
        | {"hidden_size_per_layer_input": 12, "vocab_size_per_layer_input": VOCAB}
        | {
            "rope_parameters": {
                "full_attention": {"rope_type": "proportional", "rope_theta": 1000.0, "partial_rotary_factor": 0.5},
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            }
        },
    ),
    "gemma": ("GemmaForCausalLM", _ROTARY | {"head_dim": 16}),
    "gemma-biases-untied": (
        "GemmaForCausalLM",
        _ROTARY | {"head_dim": 12, "attention_bias": True, "tie_word_embeddings": False, "hidden_act": "gelu"},
    ),
    "gemma2": ("Gemma2ForCausalLM", _GEMMA2),
    "gemma2-biases-without-caps": (
        "Gemma2ForCausalLM",
        _GEMMA2
        | {"num_hidden_layers": 3, "layer_types": _MIXED, "attention_bias": True, "tie_word_embeddings": False}
        | {"attn_logit_softcapping": None, "final_logit_softcapping": None},
    ),
    "granite": (
        "GraniteForCausalLM",
        _ROTARY
        | {"embedding_multiplier": 3.0, "attention_multiplier": 0.5, "residual_multiplier": 0.4}
        | {"logits_scaling": 0.4, "attention_bias": True, "mlp_bias": True},
    ),
    "granite-moe": (
        "GraniteMoeForCausalLM",
        _ROTARY
        | {"embedding_multiplier": 3.0, "attention_multiplier": 0.5, "residual_multiplier": 0.4, "logits_scaling": 0.4}
        | {"num_local_experts": 6, "attention_bias": True},
    ),
    "granite-hybrid": (
        "GraniteMoeHybridForCausalLM",
        _GRANITE_HYBRID
        | {"layer_types": ["mamba", "attention", "mamba"], "mamba_n_groups": 2, "time_step_limit": [0.1, 2.0]}
        | {"mamba_proj_bias": True, "attention_bias": True, "position_embedding_type": "rope"},
    ),
    "granite-hybrid-without-experts": (
        "GraniteMoeHybridForCausalLM",
        _GRANITE_HYBRID
        | {"layer_types": ["mamba", "mamba", "attention"], "num_local_experts": 0, "mamba_conv_bias": False},
    ),
    "lfm2": ("Lfm2ForCausalLM", _LFM2 | {"full_attn_idxs": [1, 4]}),
    "lfm2-biases-four-taps": (
        "Lfm2ForCausalLM",
        _LFM2
        | {"layer_types": ["conv", "full_attention", "conv"], "num_hidden_layers": 3, "tie_word_embeddings": False}
        | {"conv_bias": True, "conv_L_cache": 4, "block_auto_adjust_ff_dim": False},
    ),
    "mimo-v2": (
        "MiMoV2FlashForCausalLM",
        _ROTARY
        | {"num_hidden_layers": 3, "head_dim": 24, "v_head_dim": 12, "sliding_window": 7, "attention_bias": True}
        | {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_group": 2},
    ),
    "ministral3": (
        "Ministral3ForCausalLM",
        _ROTARY
        | {"head_dim": 16, "pad_token_id": 0}
        | {"rope_parameters": _YARN | {"mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.4}},
    ),
    "mixtral": ("MixtralForCausalLM", _ROTARY | {"num_local_experts": 6}),
    "nemotron": ("NemotronForCausalLM", _ROTARY | {"head_dim": 16, "attention_bias": True, "mlp_bias": True}),
    "nemotron-h": (
        "NemotronHForCausalLM",
        _NEMOTRON_H
        | {"layers_block_type": ["linear_attention", "moe", "full_attention", "mlp", "linear_attention"]}
        | {"mlp_bias": True, "use_bias": True, "n_group": 2, "routed_scaling_factor": 2.0},
    ),
    "nemotron-h-narrow-experts": (
        "NemotronHForCausalLM",
        _NEMOTRON_H
        | {"layers_block_type": ["moe", "linear_attention", "full_attention"], "moe_latent_size": 32}
        | {"mlp_bias": True},
    ),
    "nemotron-h-without-experts": (
        "NemotronHForCausalLM",
        _NEMOTRON_H
        | {"layers_block_type": ["mlp", "linear_attention", "full_attention"], "use_conv_bias": False}
        | {"mlp_hidden_act": "silu"},
    ),
    "olmo": ("OlmoForCausalLM", _ROTARY | {"attention_bias": True}),
    "olmo2": ("Olmo2ForCausalLM", _ROTARY | {"attention_bias": True, "num_key_value_heads": 4}),
    "phi3": ("Phi3ForCausalLM", _ROTARY | {"pad_token_id": 0}),
    "phi3-long-half": (
        "Phi3ForCausalLM",
        _ROTARY
        | {"pad_token_id": 0, "original_max_position_embeddings": 1}
        | {
            "rope_parameters": {
                "rope_type": "longrope",
                "short_factor": [1.0, 1.0],
                "long_factor": [1.5, 4.0],
                "attention_factor": 1.2,
                "original_max_position_embeddings": 1,
                "partial_rotary_factor": 0.5,
            }
        },
    ),
    "phimoe": ("PhimoeForCausalLM", _ROTARY | {"num_local_experts": 6, "pad_token_id": 0, "router_jitter_noise": 0.2}),
    "phimoe-long-biases": (
        "PhimoeForCausalLM",
        _ROTARY
        | {"num_local_experts": 6, "pad_token_id": 0, "attention_bias": True, "lm_head_bias": True, "sliding_window": 7}
        | {
            "rope_parameters": {
                "rope_type": "longrope",
                "short_factor": [1.0, 1.5, 2.0, 4.0],
                "long_factor": [1.5, 4.0, 5.0, 6.0],
                "short_mscale": 1.2,
                "long_mscale": 1.3,
                "original_max_position_embeddings": 128,
            }
        },
    ),
    "smollm3": ("SmolLM3ForCausalLM", _ROTARY | {"num_hidden_layers": 5, "pad_token_id": 0}),
    "smollm3-biases-windows": (
        "SmolLM3ForCausalLM",
        _ROTARY
        | {"no_rope_layers": [0, 1], "use_sliding_window": True, "sliding_window": 7, "pad_token_id": 0}
        | {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False},
    ),
    "cohere": (
        "CohereForCausalLM",
        _ROTARY | {"logit_scale": 0.5, "attention_bias": True, "tie_word_embeddings": False, "pad_token_id": 0},
    ),
    "cohere-norms": (
        "CohereForCausalLM",
        _ROTARY | {"use_qk_norm": True, "tie_word_embeddings": False, "pad_token_id": 0},
    ),
    "cohere2": (
        "Cohere2ForCausalLM",
        _ROTARY
        | {"num_hidden_layers": 4, "sliding_window": 7, "logit_scale": 0.5, "pad_token_id": 0}
        | {"attention_bias": True, "tie_word_embeddings": False},
    ),
    "deepseek-v2-lite": ("DeepseekV2ForCausalLM", _LATENT | {"q_lora_rank": None, "first_k_dense_replace": 1}),
    "deepseek-v2-groups": (
        "DeepseekV2ForCausalLM",
        _LATENT
        | {"q_lora_rank": 24, "attention_bias": True, "routed_scaling_factor": 1.5, "n_shared_experts": 1}
        | {"topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2},
    ),
    "deepseek-v3": (
        "DeepseekV3ForCausalLM",
        _LATENT
        | {"q_lora_rank": 24, "attention_bias": True, "first_k_dense_replace": 1, "n_group": 4, "topk_group": 2}
        | {"rope_parameters": _YARN | {"mscale": 0.7, "mscale_all_dim": 0.4}},
    ),
    "deepseek-v3.2": (
        "DeepseekV32ForCausalLM",
        _SPARSE
        | {"n_group": 4, "topk_group": 2, "first_k_dense_replace": 1, "attention_bias": True}
        | {"rope_parameters": _YARN | {"mscale": 0.7, "mscale_all_dim": 0.4}},
    ),
    "glm-5": (
        "GlmMoeDsaForCausalLM",
        _SPARSE | {"mlp_layer_types": ["dense", "sparse", "dense"], "attention_bias": True},
    ),
    "glm-5-shared": (
        "GlmMoeDsaForCausalLM",
        _SPARSE
        | {"num_hidden_layers": 5, "indexer_types": ["full", "shared", "shared", "full", "shared"]}
        | {"mlp_layer_types": ["dense", "sparse", "dense", "dense", "dense"]},
    ),
    "kimi-k2.5": (
        "Kimi_K25ForConditionalGeneration",
        {
            "text_config": _LATENT
            | {
                "model_type": "deepseek_v3",
                "attention_bias": True,
                "q_lora_rank": 24,
                "first_k_dense_replace": 1,
                "n_group": 1,
                "topk_group": 1,
            },
            "vision_config": {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
            | {"num_attention_heads": 2, "pos_emb_height": 4, "pos_emb_width": 4},
            "projection_hidden_size": 16,
            "tie_word_embeddings": False,
        },
    ),
    "glm4-moe-lite": (
        "Glm4MoeLiteForCausalLM",
        _LATENT | {"q_lora_rank": 24, "attention_bias": True, "rope_interleave": False, "norm_topk_prob": False},
    ),
    "kimi-linear": (
        "KimiLinearForCausalLM",
        _KIMI_LINEAR
        | {"num_hidden_layers": 3, "layer_types": ["linear_attention", "full_attention", "linear_attention"]}
        | {"num_expert_group": 2, "routed_scaling_factor": 1.5},
    ),
    "kimi-linear-low-rank-queries": (
        "KimiLinearForCausalLM",
        _KIMI_LINEAR
        | {"num_hidden_layers": 2, "layer_types": ["full_attention", "linear_attention"], "q_lora_rank": 24}
        | {"mlp_layer_types": ["sparse", "dense"], "attention_bias": True, "moe_renormalize": False}
        | {"linear_conv_kernel_dim": 3, "linear_head_dim": 16},
    ),
    "ernie4_5-moe": (
        "Ernie4_5_MoeForCausalLM",
        _ROTARY
        | {"num_hidden_layers": 4, "moe_num_experts": 6, "moe_k": 2, "moe_intermediate_size": 32}
        | {"moe_layer_interval": 2, "moe_norm_min": 0.6, "tie_word_embeddings": False},
    ),
    "ernie4_5": ("Ernie4_5ForCausalLM", _ROTARY | {"head_dim": 12, "use_bias": True, "tie_word_embeddings": False}),
    "exaone4": ("Exaone4ForCausalLM", _ROTARY | {"num_hidden_layers": 4, "sliding_window": 7}),
    "exaone4-without-windows": (
        "Exaone4ForCausalLM",
        _ROTARY | {"sliding_window": None, "layer_types": ["full_attention"] * 2},
    ),
    "glm": (
        "GlmForCausalLM",
        _ROTARY | {"head_dim": 16, "attention_bias": True, "pad_token_id": 0},
    ),
    "glm4": ("Glm4ForCausalLM", _ROTARY | {"head_dim": 12, "attention_bias": True, "pad_token_id": 0}),
    "apertus": (
        "ApertusForCausalLM",
        _ROTARY | {"attention_bias": True, "rope_parameters": {"rope_type": "llama3", "rope_theta": 10000.0} | _LLAMA3},
    ),
    "hunyuan": (
        "HunYuanDenseV1ForCausalLM",
        _ROTARY
        | {
            "head_dim": 16,
            "attention_bias": True,
            "rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "alpha": 50.0, "factor": 1.0},
        },
    ),
    "hunyuan-moe": (
        "HunYuanMoEV1ForCausalLM",
        _ROTARY | {"head_dim": 16, "num_experts": 8, "moe_topk": [2, 2], "attention_bias": True},
    ),
    "flex-olmo": (
        "FlexOlmoForCausalLM",
        _ROTARY
        | {
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "norm_topk_prob": True,
            "pad_token_id": 0,
            "attention_bias": True,
        },
    ),
    "lfm2-moe": (
        "Lfm2MoeForCausalLM",
        _ROTARY
        | {
            "num_hidden_layers": 4,
            "pad_token_id": 0,
            "layer_types": ["conv", "full_attention", "conv", "full_attention"],
            "num_dense_layers": 1,
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "routed_scaling_factor": 1.5,
            "conv_bias": True,
            "tie_word_embeddings": False,
        },
    ),
    "arcee": ("ArceeForCausalLM", _ROTARY | {"attention_bias": True, "mlp_bias": True}),
    "dots1": (
        "Dots1ForCausalLM",
        _ROTARY
        | {"num_hidden_layers": 3, "head_dim": 16, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
        | {"n_routed_experts": 8, "n_shared_experts": 2, "n_group": 2, "topk_group": 1}
        | {"first_k_dense_replace": 1, "norm_topk_prob": True, "routed_scaling_factor": 2.5, "attention_bias": True}
        | {"layer_types": _MIXED, "sliding_window": 7},
    ),
    "glm4-moe": (
        "Glm4MoeForCausalLM",
        _ROTARY
        | {"head_dim": 16, "attention_bias": True, "use_qk_norm": True, "n_group": 2, "routed_scaling_factor": 1.5}
        | {"n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
    ),
    "minimax-m2": (
        "MiniMaxM2ForCausalLM",
        _ROTARY | {"head_dim": 16, "rotary_dim": 8, "num_local_experts": 6, "num_experts_per_tok": 2},
    ),
    "gpt-oss": (
        "GptOssForCausalLM",
        _ROTARY
        | {"head_dim": 16, "num_local_experts": 6, "num_experts_per_tok": 2, "sliding_window": 7}
        | {"rope_parameters": _YARN | {"truncate": False}, "swiglu_limit": 1.5},
    ),
    "gpt-neox": ("GPTNeoXForCausalLM", _NEOX),
    "gpt-neox-in-turn-half-linear": (
        "GPTNeoXForCausalLM",
        _NEOX
        | {"use_parallel_residual": False, "attention_bias": True, "tie_word_embeddings": True}
        | {
            "rope_parameters": {
                "rope_type": "linear",
                "rope_theta": 500.0,
                "factor": 2.5,
                "partial_rotary_factor": 0.5,
            }
        },
    ),
    "olmo3": (
        "Olmo3ForCausalLM",
        _ROTARY
        | {"num_hidden_layers": 4, "sliding_window": 7, "num_key_value_heads": 4, "attention_bias": True}
        | {"rope_parameters": {"full_attention": _YARN, "sliding_attention": {"rope_type": "default"}}},
    ),
    "olmoe": ("OlmoeForCausalLM", _ROTARY | {"num_experts": 6, "num_experts_per_tok": 2, "attention_bias": True}),
    "qwen2-moe-some-layers": (
        "Qwen2MoeForCausalLM",
        {name: value for name, value in _MOE.items() if name != "head_dim"}
        | {"num_hidden_layers": 3, "mlp_only_layers": [1], "shared_expert_intermediate_size": 48},
    ),
    "seed-oss": ("SeedOssForCausalLM", _ROTARY | {"head_dim": 16, "attention_out_bias": True, "mlp_bias": True}),
    "step3p5": (
        "Step3p5ForCausalLM",
        _ROTARY
        | {"num_hidden_layers": 4, "head_dim": 16, "sliding_window": 7, "attention_bias": True, "mlp_bias": True}
        | {"layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]}
        | {"attention_other_setting": {"num_attention_heads": 16}}
        | {"rope_theta": [5000.0, 100.0, 100.0, 5000.0], "partial_rotary_factors": [0.5, 1.0, 1.0, 0.5]}
        | {"rope_scaling": {"rope_type": "llama3", **_LLAMA3}}
        | {"moe_num_experts": 8, "moe_top_k": 2, "moe_intermediate_size": 32, "share_expert_dim": 48}
        | {"moe_layers_enum": "1,2,3", "moe_router_scaling_factor": 2.0}
        | {"swiglu_limits": [0.0, 0.0, 0.7, 0.6], "swiglu_limits_shared": [0.5, 0.0, 0.6, 0.0]},
    ),
    "stablelm": ("StableLmForCausalLM", _ROTARY | {"use_qkv_bias": True}),
    "stablelm-parallel-half": (
        "StableLmForCausalLM",
        _ROTARY | {"use_parallel_residual": True, "partial_rotary_factor": 0.5},
    ),
    "stablelm-parallel-norms": (
        "StableLmForCausalLM",
        _ROTARY | {"use_parallel_residual": True, "qk_layernorm": True},
    ),
    "starcoder2": ("Starcoder2ForCausalLM", _ROTARY | {"sliding_window": 7}),
    "starcoder2-no-bias-untied": (
        "Starcoder2ForCausalLM",
        _ROTARY | {"use_bias": False, "tie_word_embeddings": False},
    ),
    "bloom": (
        "BloomForCausalLM",
        _CLASSIC | {"hidden_size": 96, "n_layer": 2, "n_head": 6, "seq_length": 128, "tie_word_embeddings": False},
    ),
    "falcon": ("FalconForCausalLM", _FALCON),
    "falcon-new": (
        "FalconForCausalLM",
        _FALCON | {"new_decoder_architecture": True, "num_kv_heads": 2, "tie_word_embeddings": False, "bias": True},
    ),
    "falcon-alibi-in-turn": (
        "FalconForCausalLM",
        _FALCON | {"alibi": True, "multi_query": False, "parallel_attn": False, "ffn_hidden_size": 96, "bias": True},
    ),
    "gpt-bigcode": ("GPTBigCodeForCausalLM", _GPT2),
    "gpt-bigcode-heads-untied": (
        "GPTBigCodeForCausalLM",
        _GPT2 | {"multi_query": False, "tie_word_embeddings": False, "activation_function": "gelu"},
    ),
    "gpt-neo": (
        "GPTNeoForCausalLM",
        _CLASSIC
        | {"num_layers": 3, "num_heads": 8, "max_position_embeddings": 128, "window_size": 7}
        | {"attention_types": [[["global", "local"], 1], [["local"], 1]], "tie_word_embeddings": False},
    ),
    "gptj": ("GPTJForCausalLM", _GPT2 | {"rotary_dim": 4}),
    "mpt": (
        "MptForCausalLM",
        {"vocab_size": VOCAB, "d_model": 96, "n_heads": 6, "n_layers": 2, "max_seq_len": 128}
        | {"tie_word_embeddings": False, "attn_config": {"softmax_scale": 0.3}},
    ),
    "phi": ("PhiForCausalLM", _ROTARY | {"partial_rotary_factor": 0.5}),
    "gpt2": ("GPT2LMHeadModel", _GPT2),
    "gpt2-untied-scales": (
        "GPT2LMHeadModel",
        _GPT2
        | {"tie_word_embeddings": False, "n_inner": 80, "activation_function": "relu", "layer_norm_epsilon": 1e-4}
        | {"scale_attn_weights": False, "scale_attn_by_inverse_layer_idx": True, "reorder_and_upcast_attn": True},
    ),
    "opt": ("OPTForCausalLM", _OPT),
    "opt-norm-after-projected": (
        "OPTForCausalLM",
        _OPT | {"do_layer_norm_before": False, "word_embed_proj_dim": 48},
    ),
    "opt-plain-norms-no-bias": (
        "OPTForCausalLM",
        _OPT | {"enable_bias": False, "layer_norm_elementwise_affine": False, "activation_function": "gelu"},
    ),
    "opt-untied-no-final-norm": (
        "OPTForCausalLM",
        _OPT | {"tie_word_embeddings": False, "_remove_final_layer_norm": True},
    ),
}

EMBEDDING_MODEL = ("Qwen3Model", _ROTARY | {"num_hidden_layers": 3, "head_dim": 16, "tie_word_embeddings": False})
"""Qwen3-Embedding's shape: saved without a head and without a prefix, whether its embeddings are tied or not."""

CLASSIFYING_MODELS = {
    "classes": ("Qwen3ForSequenceClassification", EMBEDDING_MODEL[1] | {"num_labels": 3, "pad_token_id": 0}),
    "tokens": ("LlamaForTokenClassification", _ROTARY | {"num_labels": 4}),
}
"""Decoders with heads of classes, by how transformers' generic classes save them."""

ARCHITECTURES = {architecture: case for case, (architecture, _) in reversed(CASES.items())}
"""The first case of each."""

FAMILIES = (
    "llama",
    "llama4",
    "mistral-window",
    "qwen2",
    "qwen3-biases-windows",
    "qwen2-moe-some-layers",
    "qwen3-moe",
    "gemma2",
    "gemma3",
    "gemma4-experts",
    "gemma4-shared",
    "lfm2",
    "granite-hybrid",
    "jamba",
    "falcon-h1",
    "nemotron-h",
    "mamba2",
    "rwkv7",
    "qwen3-next",
    "deepseek-v3",
    "deepseek-v3.2",
    "kimi-linear",
    "olmo2",
    "cohere-norms",
    "cohere2",
    "mimo-v2",
    "ministral3",
    "phimoe-long-biases",
    "glm4",
    "gpt-neox",
    "gpt-oss",
    "olmo3",
    "falcon-alibi-in-turn",
    "gpt2",
    "opt-norm-after-projected",
)
"""One case of each family that is built in a way of its own, for what does not need every switch."""

QUICK = frozenset(("llama", "deepseek-v3"))
"""Of those, two that have most of what the others have; states are in `tests/integration/test_states.py`."""


@dataclass(frozen=True)
class Fixture:
    """What transformers computed: logits `[tokens, V]` of each prompt, and the greedy tokens after it."""

    config: Mapping[str, Any]
    shapes: Mapping[str, Sequence[int]]
    logits: Sequence[np.ndarray]
    greedy: Sequence[Sequence[int]]

    @classmethod
    def load(cls, name: str) -> Fixture:
        stored = json.loads((FIXTURES / f"{name}.json").read_text())
        logits = np.load(FIXTURES / f"{name}.npz")
        return cls(stored["config"], stored["shapes"], [logits[str(i)] for i in range(len(PROMPTS))], stored["greedy"])

    @property
    def tensors(self) -> dict[str, np.ndarray]:
        return random_tensors(self.shapes)

    @property
    def logprobs(self) -> list[np.ndarray]:
        """The logits as log probabilities."""
        return [log_softmax(logits) for logits in self.logits]

    @property
    def spread(self) -> float:
        """Standard deviation of the logits: what errors are measured against."""
        return float(np.concatenate(self.logits).std())


def log_softmax(logits: np.ndarray) -> np.ndarray:
    logits = logits.astype(np.float64)
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


@dataclass(frozen=True)
class EmbeddingFixture:
    """What transformers computed for the embedding model: `[E]` of each prompt, of length one."""

    config: Mapping[str, Any]
    shapes: Mapping[str, Sequence[int]]
    embeddings: Sequence[np.ndarray]

    @classmethod
    def load(cls) -> EmbeddingFixture:
        stored = json.loads((FIXTURES / "embedding.json").read_text())
        embeddings = np.load(FIXTURES / "embedding.npz")
        return cls(stored["config"], stored["shapes"], [embeddings[str(i)] for i in range(len(PROMPTS))])

    def write(self, directory: Path) -> Path:
        """A checkpoint as sentence-transformers saves it."""
        (directory / "1_Pooling").mkdir(parents=True)
        (directory / "config.json").write_text(json.dumps(self.config))
        modules = [{"type": f"sentence_transformers.models.{name}"} for name in ("Transformer", "Pooling", "Normalize")]
        (directory / "modules.json").write_text(json.dumps(modules))
        (directory / "1_Pooling/config.json").write_text(json.dumps({"pooling_mode_lasttoken": True}))
        save_file(random_tensors(self.shapes), directory / "model.safetensors")
        return directory


@dataclass(frozen=True, slots=True)
class ClassifyingFixture:
    """What transformers computed of a model with classes: of each prompt the `hidden` states `[tokens, E]` before its head, and
    `logits`, `[classes]` or of each token `[tokens, classes]`."""

    config: Mapping[str, Any]
    shapes: Mapping[str, Sequence[int]]
    hidden: Sequence[np.ndarray]
    logits: Sequence[np.ndarray]

    @classmethod
    def load(cls, name: str) -> ClassifyingFixture:
        stored = json.loads((FIXTURES / f"classifying_{name}.json").read_text())
        arrays = np.load(FIXTURES / f"classifying_{name}.npz")
        numbers = range(len(PROMPTS))
        return cls(
            stored["config"],
            stored["shapes"],
            [arrays[f"hidden{i}"] for i in numbers],
            [arrays[f"logits{i}"] for i in numbers],
        )

    def write(
        self, directory: Path, tensors: Mapping[str, np.ndarray] | None = None, *, left: str = "", **config: Any
    ) -> Path:
        """A checkpoint; without the tensors whose names begin with `left`, with other `tensors`, and changes of `config`."""
        directory.mkdir(parents=True)
        (directory / "config.json").write_text(json.dumps({**self.config, **config}))
        own = {
            name: value for name, value in random_tensors(self.shapes).items() if not (left and name.startswith(left))
        }
        save_file({**own, **(tensors or {})}, directory / "model.safetensors")
        return directory


def random_tensors(shapes: Mapping[str, Sequence[int]]) -> dict[str, np.ndarray]:
    """Float32 weights that depend on the tensors' names alone, wide enough that a wrong term shows in the logits."""
    tensors = {}
    for name, shape in shapes.items():
        # Raw Philox words: NumPy keeps those the same over its versions, and its distributions not.
        words = np.random.Philox(zlib.crc32(name.encode())).random_raw(int(np.prod(shape)))
        uniform = ((words >> np.uint64(40)).astype(np.float64) / 2**23 - 1.0).reshape(shape)
        if len(shape) < 2:
            tensor = 0.3 * uniform if name.endswith("bias") else 1.0 + 0.3 * uniform
            tensor = -tensor if name.endswith("_min") else tensor  # a lower bound
        else:
            tensor = uniform * (2.0 if "embed" in name or "wte" in name or "wpe" in name else 3.0) / np.sqrt(shape[-1])
        tensors[name] = np.asarray(tensor, np.float32)
    return tensors
