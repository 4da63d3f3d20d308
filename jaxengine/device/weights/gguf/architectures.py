"""The architectures of GGUF files that are read, and what each is in transformers' terms.

The values are those of llama.cpp's `convert_hf_to_gguf.py`, which wrote the file, read backwards.
"""

from __future__ import annotations

from collections.abc import Mapping

from jaxengine.device.weights.gguf import order, settings
from jaxengine.device.weights.gguf.architecture import OUTER, Architecture
from jaxengine.device.weights.gguf.settings import Metadata
from jaxengine.errors import CheckpointError

_ATTENTION = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
}
_QK_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_MLP = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
_EXPERTS = {
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.{expert}.gate_proj",
    "ffn_up_exps": "mlp.experts.{expert}.up_proj",
    "ffn_down_exps": "mlp.experts.{expert}.down_proj",
}
_NORMS = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
_SHARED_EXPERT = {
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
}
_LFM2 = {
    **{name: plain.replace("o_proj", "out_proj") for name, plain in _ATTENTION.items()},
    "attn_norm": "operator_norm",
    "attn_q_norm": "self_attn.q_layernorm",
    "attn_k_norm": "self_attn.k_layernorm",
    "ffn_norm": "ffn_norm",
    "ffn_gate": "feed_forward.w1",
    "ffn_up": "feed_forward.w3",
    "ffn_down": "feed_forward.w2",
    "shortconv.conv": "conv.conv",
    "shortconv.in_proj": "conv.in_proj",
    "shortconv.out_proj": "conv.out_proj",
}
_LFM2_OUTER = {"token_embd": OUTER["token_embd"], "token_embd_norm": "model.embedding_norm", "output": OUTER["output"]}
_DELTA_NET = {
    "attn_qkv": "linear_attn.in_proj_qkv",
    "attn_gate": "linear_attn.in_proj_z",
    "ssm_alpha": "linear_attn.in_proj_a",
    "ssm_beta": "linear_attn.in_proj_b",
    "ssm_conv1d": "linear_attn.conv1d",
    "ssm_norm": "linear_attn.norm",
    "ssm_out": "linear_attn.out_proj",
    "ssm_a": "linear_attn.A_log",
    "ssm_dt": "linear_attn.dt_bias",
}
_NORMS_BEHIND = {
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_NORMS_BEFORE_BOTH = {"attn_norm": "input_layernorm", "post_attention_norm": "post_attention_layernorm"}
_NORMS_ON_BOTH_SIDES = {
    "attn_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}


ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": Architecture(
        model_class="LlamaForCausalLM",
        names={**_ATTENTION, **_MLP, **_NORMS},
        settings=settings.llama,
        orders=order.pairs,
    ),
    "qwen2": Architecture(model_class="Qwen2ForCausalLM", names={**_ATTENTION, **_MLP, **_NORMS}),
    "qwen2moe": Architecture(
        model_class="Qwen2MoeForCausalLM",
        names={
            **_ATTENTION,
            **_EXPERTS,
            **_NORMS,
            **_SHARED_EXPERT,
        },
        settings=settings.qwen2_moe,
    ),
    "qwen3": Architecture(
        model_class="Qwen3ForCausalLM", names={**_ATTENTION, **_QK_NORMS, **_MLP, **_NORMS}, settings=settings.biases
    ),
    "qwen3moe": Architecture(
        model_class="Qwen3MoeForCausalLM",
        names={**_ATTENTION, **_QK_NORMS, **_EXPERTS, **_NORMS},
        settings=settings.qwen3_moe,
    ),
    "gemma": Architecture(
        model_class="GemmaForCausalLM",
        names={**_ATTENTION, **_MLP, **_NORMS},
        settings=lambda metadata: settings.GEMMA,
        norm_offset=1.0,
    ),
    "gemma2": Architecture(
        model_class="Gemma2ForCausalLM",
        names={**_ATTENTION, **_MLP, **_NORMS_ON_BOTH_SIDES},
        settings=settings.gemma2,
        norm_offset=1.0,
    ),
    "gemma3": Architecture(
        model_class="Gemma3ForCausalLM",
        names={**_ATTENTION, **_QK_NORMS, **_MLP, **_NORMS_ON_BOTH_SIDES},
        settings=settings.gemma3,
        norm_offset=1.0,
    ),
    "phi3": Architecture(
        model_class="Phi3ForCausalLM",
        names={
            "attn_qkv": "self_attn.qkv_proj",
            "attn_output": "self_attn.o_proj",
            "ffn_up": "mlp.gate_up_proj",
            "ffn_down": "mlp.down_proj",
            **_NORMS,
        },
        settings=settings.phi3,
    ),
    "gpt-oss": Architecture(
        model_class="GptOssForCausalLM",
        names={
            **_ATTENTION,
            **_EXPERTS,
            "attn_norm": "input_layernorm",
            "attn_sinks": "self_attn.sinks",
            "post_attention_norm": "post_attention_layernorm",
            "ffn_gate_inp": "mlp.router",
        },
        settings=settings.gpt_oss,
    ),
    "granite": Architecture(
        model_class="GraniteForCausalLM",
        names={**_ATTENTION, **_MLP, **_NORMS},
        settings=settings.granite,
        orders=order.pairs,
    ),
    "arcee": Architecture(
        model_class="ArceeForCausalLM",
        names={**_ATTENTION, **_MLP, **_NORMS},
        settings=settings.llama,
        orders=order.pairs,
    ),
    "ernie4_5": Architecture(
        model_class="Ernie4_5ForCausalLM",
        names={**_ATTENTION, **_MLP, **_NORMS},
        settings=lambda metadata: {"use_bias": "blk.0.attn_q.bias" in metadata.tensors},
    ),
    "exaone4": Architecture(
        model_class="Exaone4ForCausalLM",
        names={**_ATTENTION, **_QK_NORMS, **_MLP, **_NORMS_BEHIND},
        settings=settings.exaone4,
    ),
    "glm4": Architecture(
        model_class="Glm4ForCausalLM",
        names={
            **_ATTENTION,
            "ffn_up": "mlp.gate_up_proj",
            "ffn_down": "mlp.down_proj",
            **_NORMS,
            "post_attention_norm": "post_self_attn_layernorm",
            "post_ffw_norm": "post_mlp_layernorm",
        },
        settings=settings.glm4,
    ),
    "hunyuan-dense": Architecture(
        model_class="HunYuanDenseV1ForCausalLM",
        names={
            **_ATTENTION,
            "attn_q_norm": "self_attn.query_layernorm",
            "attn_k_norm": "self_attn.key_layernorm",
            **_MLP,
            **_NORMS,
        },
        settings=settings.biases,
    ),
    "olmo2": Architecture(
        model_class="Olmo2ForCausalLM",
        names={**_ATTENTION, **_QK_NORMS, **_MLP, **_NORMS_BEHIND},
        settings=settings.biases,
    ),
    "seed_oss": Architecture(
        model_class="SeedOssForCausalLM",
        names={
            **_ATTENTION,
            **_MLP,
            "attn_norm": "input_layernorm",
            "post_attention_norm": "post_attention_layernorm",
        },
        settings=settings.seed_oss,
    ),
    "smollm3": Architecture(
        model_class="SmolLM3ForCausalLM",
        names={**_ATTENTION, **_MLP, **_NORMS},
        settings=settings.smollm3,
        orders=order.pairs,
    ),
    "lfm2": Architecture(
        model_class="Lfm2ForCausalLM",
        names=_LFM2,
        settings=settings.lfm2,
        unsaid=("rms_norm_eps",),
        outer=_LFM2_OUTER,
    ),
    "lfm2moe": Architecture(
        model_class="Lfm2MoeForCausalLM",
        names={
            **_LFM2,
            "ffn_gate_inp": "feed_forward.gate",
            "exp_probs_b": "feed_forward.expert_bias",
            "ffn_gate_exps": "feed_forward.experts.{expert}.w1",
            "ffn_up_exps": "feed_forward.experts.{expert}.w3",
            "ffn_down_exps": "feed_forward.experts.{expert}.w2",
        },
        settings=settings.lfm2_moe,
        unsaid=("rms_norm_eps",),
        outer=_LFM2_OUTER,
    ),
    "qwen35": Architecture(
        model_class="Qwen3_5ForCausalLM",
        names={**_ATTENTION, **_QK_NORMS, **_DELTA_NET, **_MLP, **_NORMS_BEFORE_BOTH},
        settings=settings.qwen3_5,
        orders=order.value_heads,
        norm_offset=1.0,
        plain_norms=("ssm_norm",),
    ),
    "qwen35moe": Architecture(
        model_class="Qwen3_5MoeForCausalLM",
        names={**_ATTENTION, **_QK_NORMS, **_DELTA_NET, **_EXPERTS, **_SHARED_EXPERT, **_NORMS_BEFORE_BOTH},
        settings=settings.qwen3_5_moe,
        orders=order.value_heads,
        norm_offset=1.0,
        plain_norms=("ssm_norm",),
    ),
    "mistral3": Architecture(
        model_class="Ministral3ForCausalLM",
        names={**_ATTENTION, **_MLP, **_NORMS},
        settings=settings.ministral3,
        orders=order.pairs,
    ),
    "olmoe": Architecture(
        model_class="OlmoeForCausalLM",
        names={**_ATTENTION, **_QK_NORMS, **_EXPERTS, **_NORMS},
        settings=settings.olmoe,
    ),
    "starcoder2": Architecture(
        model_class="Starcoder2ForCausalLM",
        names={**_ATTENTION, "ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj", **_NORMS},
        settings=settings.starcoder2,
        unsaid=("rms_norm_eps",),
    ),
    "command-r": Architecture(
        model_class="CohereForCausalLM",
        names={**_ATTENTION, **_QK_NORMS, **_MLP, "attn_norm": "input_layernorm"},
        settings=settings.command_r,
        unsaid=("rms_norm_eps",),
    ),
    "cohere2": Architecture(
        model_class="Cohere2ForCausalLM",
        names={**_ATTENTION, **_MLP, "attn_norm": "input_layernorm"},
        settings=settings.cohere2,
        unsaid=("rms_norm_eps",),
    ),
    "glm4moe": Architecture(
        model_class="Glm4MoeForCausalLM",
        names={
            **_ATTENTION,
            **_QK_NORMS,
            **_MLP,
            **_EXPERTS,
            **{name: plain.replace("shared_expert.", "shared_experts.") for name, plain in _SHARED_EXPERT.items()},
            **_NORMS_BEFORE_BOTH,
            "exp_probs_b": "mlp.gate.e_score_correction_bias",
        },
        settings=settings.glm4_moe,
    ),
}
"""By `general.architecture`."""

ALSO: Mapping[str, str] = {"qwen2vl": "qwen2", "qwen3vl": "qwen3", "qwen3vlmoe": "qwen3moe"}
"""The language models of those that see pictures: their tower is a file of its own, which is not read."""

OLMO3 = Architecture(
    model_class="Olmo3ForCausalLM",
    names=ARCHITECTURES["olmo2"].names,
    settings=settings.olmo3,
)
"""Files of it are `olmo2` with windows."""

MIXTRAL = Architecture(
    model_class="MixtralForCausalLM",
    names={
        **_ATTENTION,
        **_NORMS,
        "ffn_gate_inp": "block_sparse_moe.gate",
        "ffn_gate_exps": "block_sparse_moe.experts.{expert}.w1",
        "ffn_down_exps": "block_sparse_moe.experts.{expert}.w2",
        "ffn_up_exps": "block_sparse_moe.experts.{expert}.w3",
    },
    settings=settings.mixtral,
    orders=order.pairs,
)
"""Files of it are `llama` with experts."""


def architecture_of(metadata: Metadata) -> Architecture:
    """Raises CheckpointError for one that is not read."""
    name, values = ALSO.get(metadata.architecture, metadata.architecture), metadata.values
    if name == "llama" and values.get("expert_count"):
        return MIXTRAL
    if name == "olmo2" and values.get("attention.sliding_window"):
        return OLMO3
    if name == "mistral3" and "attention.temperature_scale" not in values:  # Mistral Small 3.1 and what came of it
        return ARCHITECTURES["llama"]
    if name not in ARCHITECTURES:
        raise CheckpointError(
            f"GGUF files of the architecture {name!r} are not read; those of {', '.join((*ARCHITECTURES, *ALSO))} are. "
            "The plain checkpoint of the model may be supported (jaxengine models)"
        )
    return ARCHITECTURES[name]
