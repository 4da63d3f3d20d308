"""GPT-Neo: GPT-2 with matrices as `[out, in]`, scores as they are, and a window in some layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from jaxengine.device.layers.activation import ACTIVATIONS
from jaxengine.device.models.config.decoder_config import read_stored_dtype
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.families.gpt2 import GPT2Config, GPT2LMHeadModel
from jaxengine.device.weights.rules import Ignore, Rule
from jaxengine.errors import ConfigError

ATTENTION = "[transformer.]h.*.attn.attention"


class GPTNeoForCausalLM(GPT2LMHeadModel):
    """A `Model`."""

    WEIGHTS: ClassVar[Sequence[Rule | Ignore]] = (
        *(
            Rule(row.target, row.source, absent_if=row.absent_if)
            for row in GPT2LMHeadModel.WEIGHTS
            if isinstance(row, Rule) and ".attn." not in row.source
        ),
        *(Rule(f"layers.*.attention.{name}.weight", f"{ATTENTION}.{name}_proj.weight") for name in "qkv"),
        *(Rule(f"layers.*.attention.o.{kind}", f"{ATTENTION}.out_proj.{kind}") for kind in ("weight", "bias")),
        Ignore(f"{ATTENTION}.bias", "the causal mask, which attention knows"),
        Ignore(f"{ATTENTION}.masked_bias", "the value of masked scores, which attention knows"),
    )
    IGNORED: ClassVar[Mapping[str, Ignored]] = {
        **GPT2LMHeadModel.IGNORED,
        **dict.fromkeys(("resid_dropout", "embed_dropout", "classifier_dropout"), Ignored("only used in training")),
        "attention_layers": Ignored("attention_types says it"),
        "gradient_checkpointing": Ignored("only used in training"),
    }

    @classmethod
    def read_config(cls, reader: ConfigReader) -> GPT2Config:
        hidden_size, num_heads = reader.size("hidden_size"), reader.size("num_heads")
        if hidden_size % num_heads:
            raise ConfigError(f"config.json: num_heads={num_heads} must divide hidden_size={hidden_size}")
        num_layers = reader.size("num_layers")
        return GPT2Config(
            vocab_size=reader.size("vocab_size"),
            hidden_size=hidden_size,
            mlp_size=reader.nullable_size("intermediate_size", None) or 4 * hidden_size,
            num_layers=num_layers,
            num_heads=num_heads,
            num_kv_heads=num_heads,
            head_dim=hidden_size // num_heads,
            max_position_embeddings=reader.optional_size("max_position_embeddings", 2048),
            tie_word_embeddings=reader.optional("tie_word_embeddings", True, bool),
            dtype=read_stored_dtype(reader),
            windows=_read_windows(reader, num_layers),
            layer_norm_epsilon=reader.optional("layer_norm_epsilon", 1e-5, float),
            activation=reader.choice("activation_function", "gelu_new", ACTIVATIONS),
            scale_by_head=False,
            scale_by_layer=False,
            qkv_bias=False,
        )


def _read_windows(reader: ConfigReader, num_layers: int) -> tuple[int | None, ...]:
    """By `attention_types`: kinds of some layers, and how often they come one behind the other.

    Raises:
        ConfigError: something else, or another number of layers.
    """
    window, types = reader.optional_size("window_size", 256), reader.raw("attention_types", [[["global", "local"], 12]])
    try:
        kinds = [kind for of_some, times in types for kind in of_some * times]
    except (TypeError, ValueError):
        kinds = []
    if len(kinds) != num_layers or set(kinds) - {"global", "local"}:
        raise ConfigError(
            f"config.json: attention_types must say global or local for each of {num_layers} layers, got {types!r}"
        )
    return tuple(window if kind == "local" else None for kind in kinds)
