"""What a GGUF architecture is in transformers' terms: configuration, and names of tensors.

The values are those of llama.cpp's `convert_hf_to_gguf.py`, which wrote the file, read backwards.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from jaxengine.device.weights.gguf import settings
from jaxengine.device.weights.gguf.settings import Metadata, Values
from jaxengine.errors import CheckpointError


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """`names` are tensors' names: those of a layer without `blk.N.`, which stand for `model.layers.N.`.

    `settings` completes the configuration. With `interleaved` the rows of queries and keys lie as ggml rotates them: two
    neighbours are a pair, where transformers pairs the halves of a head. `norm_offset` was added to the weights of norms.
    """

    model_class: str
    names: Mapping[str, str]
    settings: Callable[[Metadata], Values] = lambda metadata: {}
    interleaved: bool = False
    norm_offset: float = 0.0

    def config(self, metadata: Metadata) -> Values:
        """config.json.

        Raises:
            CheckpointError: the file does not say what it has to, or says what is not built.
        """
        known = {key: metadata.values[name] for key, name in COMMON.items() if name in metadata.values}
        values = {"architectures": [self.model_class], "vocab_size": metadata.num_tokens, **known}
        values["tie_word_embeddings"] = "output.weight" not in metadata.tensors
        if isinstance(values.get("num_key_value_heads"), list):
            raise CheckpointError(
                "layers of this GGUF file have different numbers of KV heads, which is not built; use the plain checkpoint"
            )
        return {**values, **settings.rope_scaling(metadata), **self.settings(metadata)}

    def plain_name(self, name: str) -> str | None:
        """A tensor's name in transformers' checkpoint, with `{expert}` for the experts that it has along its first axis."""
        stem, _, last = name.rpartition(".")
        layer = re.fullmatch(r"blk\.(\d+)\.(.+)", stem)
        if layer is None:
            found = OUTER.get(stem)
            return None if found is None else f"{found}.{last}"
        found = self.names.get(layer[2])
        if found is None:
            return None
        return f"model.layers.{layer[1]}.{found}" if layer[2] in BARE else f"model.layers.{layer[1]}.{found}.{last}"


COMMON = {
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "max_position_embeddings": "context_length",
    "rope_theta": "rope.freq_base",
}
"""Keys of config.json, and what they are called behind the architecture's name."""
UNREAD = ("rope_freqs", "rope_factors_long", "rope_factors_short")
"""Tensors that are part of the configuration."""

BARE = ("attn_sinks",)
"""Tensors of layers whose names in transformers have no last part."""

OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
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
_NORMS_BEHIND = {
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
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
        interleaved=True,
    ),
    "qwen2": Architecture(model_class="Qwen2ForCausalLM", names={**_ATTENTION, **_MLP, **_NORMS}),
    "qwen2moe": Architecture(
        model_class="Qwen2MoeForCausalLM",
        names={
            **_ATTENTION,
            **_EXPERTS,
            **_NORMS,
            "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
            "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
            "ffn_up_shexp": "mlp.shared_expert.up_proj",
            "ffn_down_shexp": "mlp.shared_expert.down_proj",
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
        interleaved=True,
    ),
    "arcee": Architecture(
        model_class="ArceeForCausalLM",
        names={**_ATTENTION, **_MLP, **_NORMS},
        settings=settings.llama,
        interleaved=True,
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
        settings=settings.no_windows,
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
        interleaved=True,
    ),
}
"""By `general.architecture`."""

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
    interleaved=True,
)
"""Files of it are `llama` with experts."""


def architecture_of(metadata: Metadata) -> Architecture:
    """Raises CheckpointError for one that is not read."""
    if metadata.architecture == "llama" and metadata.values.get("expert_count"):
        return MIXTRAL
    if metadata.architecture not in ARCHITECTURES:
        raise CheckpointError(
            f"GGUF files of the architecture {metadata.architecture!r} are not read; those of {', '.join(ARCHITECTURES)} are. "
            "The plain checkpoint of the model may be supported (jaxengine models)"
        )
    return ARCHITECTURES[metadata.architecture]
