"""Phi-1, 1.5 and 2, and GPT-J: attention and feed-forward side by side behind one norm, a part of each head turns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from jaxengine.device.layers.activation import ACTIVATIONS
from jaxengine.device.layers.block import ParallelBlock
from jaxengine.device.layers.mlp import MLP
from jaxengine.device.layers.norm import Norm
from jaxengine.device.layers.rotary import Rope
from jaxengine.device.layers.self_attention import SelfAttention
from jaxengine.device.layers.stack import Layer
from jaxengine.device.models.config.decoder_config import read_stored_dtype
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.config.rope import DEFAULT_THETA
from jaxengine.device.models.config.rotary_config import RotaryDecoderConfig, read_shared
from jaxengine.device.models.shared.rotary_decoder import RotaryDecoder, bias_rules, half_split_rotary, layer_norm
from jaxengine.device.weights.rules import Ignore, Rule, repeat_kv_heads
from jaxengine.errors import ConfigError

PHI, GPTJ = "model.layers.*", "transformer.h.*"


class PhiForCausalLM(RotaryDecoder):
    """A `Model`."""

    WEIGHTS = half_split_rotary(
        (
            Rule("embed.table", "model.embed_tokens.weight"),
            Rule("layers.*.attention_norm.scale", f"{PHI}.input_layernorm.weight"),
            Rule("layers.*.attention_norm.bias", f"{PHI}.input_layernorm.bias"),
            Rule("layers.*.attention.q.weight", f"{PHI}.self_attn.q_proj.weight"),
            Rule("layers.*.attention.k.weight", f"{PHI}.self_attn.k_proj.weight", repeat_kv_heads),
            Rule("layers.*.attention.v.weight", f"{PHI}.self_attn.v_proj.weight", repeat_kv_heads),
            *bias_rules("q", "k", "v"),
            Rule("layers.*.attention.o.weight", f"{PHI}.self_attn.dense.weight"),
            Rule("layers.*.attention.o.bias", f"{PHI}.self_attn.dense.bias"),
            *(
                Rule(f"layers.*.mlp.{name}.{kind}", f"{PHI}.mlp.{source}.{kind}")
                for kind in ("weight", "bias")
                for name, source in (("up", "fc1"), ("down", "fc2"))
            ),
            Rule("norm.scale", "model.final_layernorm.weight"),
            Rule("norm.bias", "model.final_layernorm.bias"),
            Rule("head.table", "lm_head.weight", absent_if="tie_word_embeddings"),
            Rule("head.bias", "lm_head.bias"),
        )
    )
    FEED_FORWARD = MLP
    IGNORED: ClassVar[Mapping[str, Ignored]] = {
        **dict.fromkeys(("embd_pdrop", "resid_pdrop"), Ignored("only used in training")),
        "auto_map": Ignored("code of the repository, which is never run"),
        "qk_layernorm": Ignored("queries and keys are not normalised", allowed=(False,)),
    }

    @classmethod
    def read_config(cls, reader: ConfigReader) -> RotaryDecoderConfig:
        shared = read_shared(
            reader,
            kv_heads=None,
            head_dim=None,
            epsilon=1e-5,
            epsilon_key="layer_norm_eps",
            activation="gelu_new",
            partial_rotary=0.5,
        )
        return RotaryDecoderConfig(
            **shared,
            windows=(None,) * shared["num_layers"],
            qkv_bias=True,
            output_bias=True,
            mlp_bias=True,
            head_bias=True,
        )

    def make_norm(self) -> Norm:
        return layer_norm(self)

    def block(self, layer: int) -> Layer:
        attention = SelfAttention(self.attention_shape(layer), context=self.context)
        return ParallelBlock(attention, self.feed_forward(layer), norm=self.make_norm, one_norm=True)


class GPTJForCausalLM(PhiForCausalLM):
    """GPT-J. A `Model`. Neighbours turn with each other, and attention has no biases."""

    WEIGHTS = half_split_rotary(
        (
            Rule("embed.table", "transformer.wte.weight"),
            Rule("layers.*.attention_norm.scale", f"{GPTJ}.ln_1.weight"),
            Rule("layers.*.attention_norm.bias", f"{GPTJ}.ln_1.bias"),
            Rule("layers.*.attention.q.weight", f"{GPTJ}.attn.q_proj.weight"),
            Rule("layers.*.attention.k.weight", f"{GPTJ}.attn.k_proj.weight"),
            Rule("layers.*.attention.v.weight", f"{GPTJ}.attn.v_proj.weight"),
            Rule("layers.*.attention.o.weight", f"{GPTJ}.attn.out_proj.weight"),
            *(
                Rule(f"layers.*.mlp.{name}.{kind}", f"{GPTJ}.mlp.{source}.{kind}")
                for kind in ("weight", "bias")
                for name, source in (("up", "fc_in"), ("down", "fc_out"))
            ),
            Rule("norm.scale", "transformer.ln_f.weight"),
            Rule("norm.bias", "transformer.ln_f.bias"),
            Rule("head.table", "lm_head.weight", absent_if="tie_word_embeddings"),
            Rule("head.bias", "lm_head.bias"),
            Ignore(f"{GPTJ}.attn.bias", "the causal mask, which attention knows"),
            Ignore(f"{GPTJ}.attn.masked_bias", "the value of masked scores, which attention knows"),
        )
    )
    IGNORED: ClassVar[Mapping[str, Ignored]] = {
        **dict.fromkeys(
            ("attn_pdrop", "embd_pdrop", "resid_pdrop", "gradient_checkpointing"), Ignored("only used in training")
        ),
        **dict.fromkeys(
            (
                "summary_activation",
                "summary_first_dropout",
                "summary_proj_to_labels",
                "summary_type",
                "summary_use_proj",
            ),
            Ignored("for classification heads"),
        ),
        "rotary": Ignored("a part of each head turns", allowed=(True,)),
        "scale_attn_weights": Ignored("scores are divided by the root of the head size", allowed=(True,)),
    }

    @classmethod
    def read_config(cls, reader: ConfigReader) -> RotaryDecoderConfig:
        hidden_size, num_heads, num_layers = reader.size("n_embd"), reader.size("n_head"), reader.size("n_layer")
        head_dim = hidden_size // num_heads
        rotary_dim = reader.optional_size("rotary_dim", 64)
        if hidden_size % num_heads or rotary_dim % 2 or head_dim % 2 or rotary_dim > head_dim:
            raise ConfigError(
                f"config.json: n_head={num_heads} must divide n_embd={hidden_size} into heads of an even size, of which "
                f"rotary_dim={rotary_dim} channels, an even number, turn"
            )
        rope = Rope(
            theta=DEFAULT_THETA,
            head_dim=head_dim,
            rotary_dim=None if rotary_dim == head_dim else rotary_dim,
            interleaved=True,
        )
        return RotaryDecoderConfig(
            vocab_size=reader.size("vocab_size"),
            hidden_size=hidden_size,
            mlp_size=reader.nullable_size("n_inner", None) or 4 * hidden_size,
            num_layers=num_layers,
            num_heads=num_heads,
            num_kv_heads=num_heads,
            head_dim=head_dim,
            max_position_embeddings=reader.size("n_positions"),
            tie_word_embeddings=reader.optional("tie_word_embeddings", False, bool),
            dtype=read_stored_dtype(reader),
            rms_norm_eps=reader.optional("layer_norm_epsilon", 1e-5, float),
            activation=reader.choice("activation_function", "gelu_new", ACTIVATIONS),
            rope=rope,
            windows=(None,) * num_layers,
            mlp_bias=True,
            head_bias=True,
        )
