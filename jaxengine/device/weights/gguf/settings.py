"""What GGUF files say of a model beside what all of them say: the rest of its config.json, by architecture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jaxengine.device.weights.rules import Array
from jaxengine.errors import CheckpointError

Values = dict[str, Any]
Tensors = Mapping[str, Array]
"""Small tensors that say something of the configuration, by their names."""


@dataclass(frozen=True, kw_only=True)
class Metadata:
    """Of one file. `values` are those under the architecture's name, without it."""

    architecture: str
    values: Mapping[str, Any]
    num_tokens: int
    tensors: frozenset[str]
    factors: Tensors = field(default_factory=dict)

    def required(self, key: str) -> Any:
        if key not in self.values:
            raise CheckpointError(f"the GGUF file says no {self.architecture}.{key}; convert or download it again")
        return self.values[key]


def rope_scaling(metadata: Metadata) -> Values:
    """What stretches rotary positions: by keys, or by tensors of factors."""
    kind = metadata.values.get("rope.scaling.type")
    if "rope_freqs" in metadata.factors:
        return {"rope_scaling": llama3_scaling(metadata.factors["rope_freqs"], metadata)}
    if "rope_factors_long" in metadata.factors:
        return {
            "rope_scaling": {
                "type": "longrope",
                "long_factor": metadata.factors["rope_factors_long"].tolist(),
                "short_factor": metadata.factors["rope_factors_short"].tolist(),
            },
            "original_max_position_embeddings": metadata.required("rope.scaling.original_context_length"),
        }
    if kind in (None, "none"):
        return {}
    factor = metadata.required("rope.scaling.factor")
    if kind == "linear":
        return {"rope_scaling": {"rope_type": "linear", "factor": factor}}
    if kind == "yarn":
        original = metadata.required("rope.scaling.original_context_length")
        betas = {f"beta_{end}": f"rope.scaling.yarn_beta_{end}" for end in ("fast", "slow")}
        said = {key: metadata.values[name] for key, name in betas.items() if name in metadata.values}
        yarn = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original, **said}
        return {"rope_scaling": yarn}
    raise CheckpointError(f"the GGUF file scales rotary positions by {kind!r}; linear, yarn and none are read")


def llama3_scaling(factors: Array, metadata: Metadata) -> Values:
    """The parameters of Llama 3.1's scaling that give these factors of wavelengths.

    Raises:
        CheckpointError: none of its published parameters do.
    """
    theta, inverse = metadata.values.get("rope.freq_base", 10000.0), np.arange(len(factors)) / len(factors)
    lengths = 2 * np.pi * theta**inverse
    found = {
        "rope_type": "llama3",
        "factor": float(factors.max()),
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    smooth = np.clip((8192 / lengths - 1.0) / 3.0, 0, 1)
    expected = 1 / ((1 - smooth) / found["factor"] + smooth)
    if not np.allclose(factors, expected, rtol=1e-4):
        raise CheckpointError(
            "the GGUF file has factors of rotary positions (rope_freqs) that are not Llama 3.1's; use the plain checkpoint"
        )
    return found


def biases(metadata: Metadata) -> Values:
    attention, mlp = ("blk.0.attn_q.bias" in metadata.tensors), ("blk.0.ffn_up.bias" in metadata.tensors)
    return {"attention_bias": attention, **({"mlp_bias": True} if mlp else {})}


def llama(metadata: Metadata) -> Values:
    head_dim = metadata.values.get("attention.key_length", metadata.values.get("rope.dimension_count"))
    return {**biases(metadata), **({} if head_dim is None else {"head_dim": head_dim})}


def mixtral(metadata: Metadata) -> Values:
    return {
        "num_local_experts": metadata.required("expert_count"),
        "num_experts_per_tok": metadata.required("expert_used_count"),
    }


def granite(metadata: Metadata) -> Values:
    return {
        **biases(metadata),
        "embedding_multiplier": metadata.values.get("embedding_scale", 1.0),
        "residual_multiplier": metadata.values.get("residual_scale", 1.0),
        "attention_multiplier": metadata.required("attention.scale"),
        "logits_scaling": metadata.values.get("logit_scale", 1.0),
    }


def smollm3(metadata: Metadata) -> Values:
    return {**llama(metadata), "no_rope_layer_interval": 4}


def qwen3_moe(metadata: Metadata) -> Values:
    return {
        "num_experts": metadata.required("expert_count"),
        "num_experts_per_tok": metadata.required("expert_used_count"),
        "moe_intermediate_size": metadata.required("expert_feed_forward_length"),
        "norm_topk_prob": True,
    }


def qwen2_moe(metadata: Metadata) -> Values:
    return {
        **qwen3_moe(metadata),
        "shared_expert_intermediate_size": metadata.required("expert_shared_feed_forward_length"),
        "norm_topk_prob": False,
    }


def gpt_oss(metadata: Metadata) -> Values:
    scaling = rope_scaling(metadata).get("rope_scaling")
    return {
        "num_local_experts": metadata.required("expert_count"),
        "num_experts_per_tok": metadata.required("expert_used_count"),
        "intermediate_size": metadata.required("expert_feed_forward_length"),
        "sliding_window": metadata.required("attention.sliding_window"),
        **({} if scaling is None else {"rope_scaling": {**scaling, "truncate": False}}),
    }


def windows(metadata: Metadata) -> Values:
    """A window of all layers but each fourth, or of those that a pattern names: flags, or every how many layers none has one."""
    window, layers = metadata.values.get("attention.sliding_window"), metadata.required("block_count")
    sees_one = metadata.values.get("attention.sliding_window_pattern", 4)
    if not isinstance(sees_one, list):
        sees_one = [bool((layer + 1) % sees_one) for layer in range(layers)]
    kinds = ["sliding_attention" if window and one else "full_attention" for one in sees_one]
    return {"sliding_window": window, "layer_types": kinds}


def olmo3(metadata: Metadata) -> Values:
    return {**biases(metadata), **windows(metadata)}


def olmoe(metadata: Metadata) -> Values:
    return {
        **biases(metadata),
        "num_experts": metadata.required("expert_count"),
        "num_experts_per_tok": metadata.required("expert_used_count"),
        "norm_topk_prob": metadata.values.get("expert_weights_norm", False),
    }


def starcoder2(metadata: Metadata) -> Values:
    return {
        "norm_epsilon": metadata.required("attention.layer_norm_epsilon"),
        "use_bias": "blk.0.attn_q.bias" in metadata.tensors,
        "sliding_window": metadata.values.get(
            "attention.sliding_window", 4096
        ),  # of all published ones; converters leave it out
    }


def command_r(metadata: Metadata) -> Values:
    return {
        "layer_norm_eps": metadata.required("attention.layer_norm_epsilon"),
        "logit_scale": metadata.required("logit_scale"),
        "use_qk_norm": "blk.0.attn_q_norm.weight" in metadata.tensors,
        "attention_bias": "blk.0.attn_q.bias" in metadata.tensors,
    }


def cohere2(metadata: Metadata) -> Values:
    return {**command_r(metadata), **windows(metadata)}


def ministral3(metadata: Metadata) -> Values:
    scaling = rope_scaling(metadata)
    if "rope_scaling" not in scaling:
        raise CheckpointError(
            "the GGUF file has queries that grow and positions that nothing scales; use the plain checkpoint"
        )
    share = metadata.values.get("rope.scaling.yarn_log_multiplier", 1.0)
    own = {
        "mscale": share,
        "mscale_all_dim": share,
        "llama_4_scaling_beta": metadata.required("attention.temperature_scale"),
    }
    return {"rope_scaling": {**scaling["rope_scaling"], **own}}


def lfm2(metadata: Metadata) -> Values:
    """Layers without heads of keys have short convolutions."""
    heads = metadata.required("attention.head_count_kv")
    return {
        "num_key_value_heads": max(heads),
        "layer_types": ["full_attention" if count else "conv" for count in heads],
        "norm_eps": metadata.required("attention.layer_norm_rms_epsilon"),
        "block_auto_adjust_ff_dim": False,
        "conv_L_cache": metadata.required("shortconv.l_cache"),
        "conv_bias": any(name.endswith("shortconv.in_proj.bias") for name in metadata.tensors),
    }


def lfm2_moe(metadata: Metadata) -> Values:
    return {
        **lfm2(metadata),
        "num_experts": metadata.required("expert_count"),
        "num_experts_per_tok": metadata.required("expert_used_count"),
        "moe_intermediate_size": metadata.required("expert_feed_forward_length"),
        "num_dense_layers": metadata.required("leading_dense_block_count"),
        "norm_topk_prob": metadata.values.get("expert_weights_norm", True),
        "routed_scaling_factor": metadata.values.get("expert_weights_scale", 1.0),
        "use_expert_bias": any(".exp_probs_b" in name for name in metadata.tensors),
    }


def qwen3_5(metadata: Metadata) -> Values:
    heads = metadata.required("ssm.time_step_rank")
    return {
        "attention_bias": any(name.endswith(".attn_q.bias") for name in metadata.tensors),
        "partial_rotary_factor": metadata.required("rope.dimension_count") / head_dim(metadata),
        "full_attention_interval": metadata.required("full_attention_interval"),
        "linear_conv_kernel_dim": metadata.required("ssm.conv_kernel"),
        "linear_key_head_dim": metadata.required("ssm.state_size"),
        "linear_num_key_heads": metadata.required("ssm.group_count"),
        "linear_num_value_heads": heads,
        "linear_value_head_dim": metadata.required("ssm.inner_size") // heads,
    }


def qwen3_5_moe(metadata: Metadata) -> Values:
    return {
        **qwen3_5(metadata),
        "num_experts": metadata.required("expert_count"),
        "num_experts_per_tok": metadata.required("expert_used_count"),
        "moe_intermediate_size": metadata.required("expert_feed_forward_length"),
        "shared_expert_intermediate_size": metadata.required("expert_shared_feed_forward_length"),
    }


def glm4_moe(metadata: Metadata) -> Values:
    return {
        "attention_bias": "blk.0.attn_q.bias" in metadata.tensors,
        "partial_rotary_factor": metadata.required("rope.dimension_count") / head_dim(metadata),
        "use_qk_norm": "blk.0.attn_q_norm.weight" in metadata.tensors,
        "n_routed_experts": metadata.required("expert_count"),
        "num_experts_per_tok": metadata.required("expert_used_count"),
        "n_shared_experts": metadata.required("expert_shared_count"),
        "moe_intermediate_size": metadata.required("expert_feed_forward_length"),
        "first_k_dense_replace": metadata.required("leading_dense_block_count"),
        "routed_scaling_factor": metadata.values.get("expert_weights_scale", 1.0),
        "norm_topk_prob": metadata.values.get("expert_weights_norm", True),
        "n_group": metadata.values.get("expert_group_count", 1),
        "topk_group": metadata.values.get("expert_group_used_count", 1),
        "num_nextn_predict_layers": 0,
    }


def exaone4(metadata: Metadata) -> Values:
    return windows(metadata)


def glm4(metadata: Metadata) -> Values:
    return {
        "attention_bias": "blk.0.attn_q.bias" in metadata.tensors,
        "partial_rotary_factor": metadata.required("rope.dimension_count") / head_dim(metadata),
    }


def seed_oss(metadata: Metadata) -> Values:
    return {**biases(metadata), "attention_out_bias": "blk.0.attn_output.bias" in metadata.tensors}


def head_dim(metadata: Metadata) -> int:
    return int(metadata.required("attention.key_length"))


def per_head(metadata: Metadata) -> int:
    return int(metadata.required("embedding_length") // metadata.required("attention.head_count"))


GEMMA = {"hidden_activation": "gelu_pytorch_tanh"}


def gemma2(metadata: Metadata) -> Values:
    largest = metadata.required("block_count") == 46  # the 27B's queries are scaled by other than their size
    return {
        **GEMMA,
        "attn_logit_softcapping": metadata.values.get("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": metadata.values.get("final_logit_softcapping", 30.0),
        "sliding_window": metadata.required("attention.sliding_window"),
        "query_pre_attn_scalar": per_head(metadata) if largest else head_dim(metadata),
    }


def gemma3(metadata: Metadata) -> Values:
    largest = metadata.required("block_count") == 62
    return {
        **GEMMA,
        "sliding_window": metadata.required("attention.sliding_window"),
        "sliding_window_pattern": 6,
        "rope_theta": metadata.values.get("rope.freq_base", 1_000_000.0),
        "rope_local_base_freq": metadata.values.get("rope.freq_base_swa", 10_000.0),
        "query_pre_attn_scalar": per_head(metadata) if largest else head_dim(metadata),
    }


def phi3(metadata: Metadata) -> Values:
    window = metadata.values.get("attention.sliding_window")
    share = metadata.values.get("rope.dimension_count", 0) / per_head(metadata)
    return {
        "sliding_window": window or None,
        "original_max_position_embeddings": metadata.values.get(
            "rope.scaling.original_context_length", metadata.required("context_length")
        ),
        **({"partial_rotary_factor": share} if 0 < share < 1 else {}),
    }
