"""Nomic's embedding models: BERT with rotary positions, a gated feed-forward, and no biases but those of norms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.shared.rotary_encoder import (
    NAMES,
    RotaryEncoder,
    RotaryEncoderConfig,
    read_activation,
    read_rotary_encoder,
)
from jaxengine.device.weights.rules import Ignore, Rule, part
from jaxengine.errors import ConfigError

OLDER_NAMES = {"width": "n_embd", "heads": "n_head", "positions": "n_positions", "mlp": "n_inner", "layers": "n_layer"}
LAYER = "encoder.layers.*"


class NomicBertModel(RotaryEncoder):
    """Its config.json has the names of transformers, or older ones beside switches that are off in all that was published."""

    WEIGHTS: ClassVar[Sequence[Rule | Ignore]] = (
        Rule("embed.table", "embeddings.word_embeddings.weight"),
        Rule("kinds.table", "embeddings.token_type_embeddings.weight"),
        *(
            Rule(f"layers.*.attention.{name}.weight", f"{LAYER}.attn.Wqkv.weight", part(at, 3))
            for at, name in enumerate("qkv")
        ),
        Rule("layers.*.attention.o.weight", f"{LAYER}.attn.out_proj.weight"),
        Rule("layers.*.mlp.up.weight", f"{LAYER}.mlp.fc11.weight"),
        Rule("layers.*.mlp.gate.weight", f"{LAYER}.mlp.fc12.weight"),
        Rule("layers.*.mlp.down.weight", f"{LAYER}.mlp.fc2.weight"),
        *(
            Rule(f"{ours}.{of}", f"{theirs}.{name}")
            for ours, theirs in (
                ("embed_norm", "emb_ln"),
                ("layers.*.attention_norm", f"{LAYER}.norm1"),
                ("layers.*.mlp_norm", f"{LAYER}.norm2"),
            )
            for of, name in (("scale", "weight"), ("bias", "bias"))
        ),
        Ignore("cls.**", "for masked words"),
    )
    IGNORED: ClassVar[Mapping[str, Ignored]] = {
        **dict.fromkeys(
            (
                *("attn_pdrop", "embd_pdrop", "resid_pdrop", "hidden_dropout_prob", "attention_probs_dropout_prob"),
                *("classifier_dropout", "summary_first_dropout", "auto_map", "head_dim", "tie_word_embeddings"),
                *("dense_seq_output", "fused_bias_fc", "fused_dropout_add_ln", "use_flash_attn", "use_xentropy"),
                *("pad_vocab_size_multiple", "last_layer_subset", "reorder_and_upcast_attn", "max_trained_positions"),
                *("scale_attn_by_inverse_layer_idx", "summary_activation", "summary_proj_to_labels", "summary_type"),
                *("summary_use_proj", "rotary_scaling_factor", "n_ctx"),
            ),
            Ignored("only used in training, for other heads, or says how it is computed and not what"),
        ),
        **dict.fromkeys(
            (
                *("prenorm", "causal", "parallel_block", "parallel_block_tied_norm", "use_rms_norm"),
                *("qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias", "rotary_emb_interleaved"),
            ),
            Ignored("a switch that is off in all that was published", allowed=(False,)),
        ),
        "rotary_emb_fraction": Ignored("all channels turn", allowed=(1, 1.0)),
        "rotary_emb_scale_base": Ignored("frequencies that change with the position", allowed=(None,)),
        "scale_attn_weights": Ignored("scores are divided by the root of the head's size", allowed=(True,)),
    }

    @classmethod
    def read_config(cls, reader: ConfigReader) -> RotaryEncoderConfig:
        if reader.raw("n_embd") is None:
            activation = read_activation(reader, "hidden_act", "silu")
            fields = read_rotary_encoder(
                reader, NAMES, theta=1000.0, activation=activation, epsilon_key="layer_norm_eps"
            )
            return RotaryEncoderConfig(**fields, biases=False)
        named = reader.optional("activation_function", "swiglu", str)
        if named not in ("swiglu", "silu"):
            raise ConfigError(f"config.json: activation_function={named!r} is not built, only swiglu")
        theta = reader.optional("rotary_emb_base", 1000.0, float)
        fields = read_rotary_encoder(
            reader, OLDER_NAMES, theta=theta, activation="silu", epsilon_key="layer_norm_epsilon"
        )
        return RotaryEncoderConfig(**fields, biases=False)
