"""The configuration that Llama and its relatives share, and the keys of config.json that they agree on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jaxengine.device.layers.activation import ACTIVATIONS
from jaxengine.device.layers.rotary import Rope
from jaxengine.device.models.config.decoder_config import DecoderConfig, read_stored_dtype
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.rope import DEFAULT_THETA, read_rope
from jaxengine.errors import ConfigError

LAYER_TYPES = ("full_attention", "sliding_attention")


@dataclass(frozen=True, kw_only=True)
class RotaryDecoderConfig(DecoderConfig):
    """Of Llama and its relatives. `rms_norm_eps` is that of layer norms too, where a family has those."""

    rms_norm_eps: float
    activation: str
    rope: Rope
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False


def read_shared(
    reader: ConfigReader,
    *,
    kv_heads: int | None,
    head_dim: int | None,
    tied: bool = False,
    theta: float = DEFAULT_THETA,
    epsilon: float = 1e-6,
    epsilon_key: str = "rms_norm_eps",
    mlp_key: str = "intermediate_size",
    activation_key: str = "hidden_act",
    activation: str = "silu",
    activations: Mapping[str, Any] | tuple[str, ...] = ACTIVATIONS,
    partial_rotary: float | None = None,
    interleaved: bool = False,
    rope_part: str | None = None,
) -> dict[str, Any]:
    """The fields that all of these families read alike.

    Hugging Face's defaults that differ between families are arguments; None stands for as many KV heads as heads, and for
    heads that share the hidden size evenly. `partial_rotary`, `interleaved` and `rope_part` are as in
    `read_rope`.
    """
    hidden_size, num_heads = reader.size("hidden_size"), reader.size("num_attention_heads")
    head_dim = reader.nullable_size("head_dim", head_dim) or hidden_size // num_heads
    if head_dim % 2:
        raise ConfigError(f"config.json: rotary heads must have an even size, got head_dim={head_dim}")
    max_positions = reader.size("max_position_embeddings")
    return {
        "vocab_size": reader.size("vocab_size"),
        "hidden_size": hidden_size,
        "mlp_size": reader.size(mlp_key),
        "num_layers": reader.size("num_hidden_layers"),
        "num_heads": num_heads,
        "num_kv_heads": reader.nullable_size("num_key_value_heads", kv_heads) or num_heads,
        "head_dim": head_dim,
        "max_position_embeddings": max_positions,
        "tie_word_embeddings": reader.optional("tie_word_embeddings", tied, bool),
        "dtype": read_stored_dtype(reader),
        "rms_norm_eps": reader.optional(epsilon_key, epsilon, float),
        "activation": reader.choice(activation_key, activation, activations),
        "rope": read_rope(
            reader,
            head_dim=head_dim,
            max_positions=max_positions,
            default=theta,
            partial_rotary=partial_rotary,
            interleaved=interleaved,
            part=rope_part,
        ),
    }


def read_whole_rows(reader: ConfigReader) -> bool:
    """Whether tokens see those after them too: `is_causal` false, as of embedding models that were decoders."""
    return not reader.optional("is_causal", True, bool)


def read_windows(reader: ConfigReader, num_layers: int) -> tuple[int | None, ...]:
    """Qwen's windows: by `layer_types`, or from layer `max_window_layers` on, and only with `use_sliding_window`."""
    window = reader.nullable_size("sliding_window", 4096)
    first = reader.optional("max_window_layers", 28, int)
    if not reader.optional("use_sliding_window", False, bool):
        window = None
    types = read_layer_types(reader, num_layers)
    if types is None:
        return tuple(window if layer >= first else None for layer in range(num_layers))
    if window is None and "sliding_attention" in types:
        raise ConfigError(
            "config.json: layer_types asks for sliding_attention, and there is no window: "
            "set use_sliding_window and sliding_window, or make every layer full_attention"
        )
    return tuple(window if kind == "sliding_attention" else None for kind in types)


def read_windows_by_type(reader: ConfigReader, num_layers: int, *, window: int, period: int) -> tuple[int | None, ...]:
    """By `layer_types`, or every `sliding_window_pattern`-th layer sees everything; the arguments are the family's defaults.

    Raises:
        ConfigError: a layer sees a window, and there is none.
    """
    size = reader.nullable_size("sliding_window", window)
    period = reader.nullable_size("sliding_window_pattern", None) or period
    types = read_layer_types(reader, num_layers) or tuple(
        "sliding_attention" if (layer + 1) % period else "full_attention" for layer in range(num_layers)
    )
    if size is None and "sliding_attention" in types:
        raise ConfigError("config.json: some layers see a window, and there is no sliding_window; set it")
    return tuple(size if kind == "sliding_attention" else None for kind in types)


def read_layer_types(
    reader: ConfigReader, num_layers: int, *, known: tuple[str, ...] = LAYER_TYPES
) -> tuple[str, ...] | None:
    """What each layer sees, one of those `known`; None where the file does not say."""
    types = reader.raw("layer_types")
    if types is None:
        return None
    if not isinstance(types, list) or len(types) != num_layers or any(kind not in known for kind in types):
        raise ConfigError(
            f"config.json: layer_types must name one of {', '.join(known)} for each of {num_layers} layers, got {types!r}"
        )
    return tuple(types)


def read_rotary_layers(reader: ConfigReader, num_layers: int, *, period: int) -> tuple[bool, ...]:
    """Of each layer whether positions turn its queries and keys.

    By `no_rope_layers`, which says it of each, or all but every `no_rope_layer_interval`-th, `period` where the file has none.

    Raises:
        ConfigError: a list of something else.
    """
    period = reader.optional_size("no_rope_layer_interval", period)
    given = reader.raw("no_rope_layers")
    if given is None or given == []:
        return tuple((layer + 1) % period != 0 for layer in range(num_layers))
    if not isinstance(given, list) or len(given) < num_layers or any(rotary not in (0, 1) for rotary in given):
        raise ConfigError(
            f"config.json: no_rope_layers must be a list of 1 (positions) or 0 for each of {num_layers} layers, got {given!r}"
        )
    return tuple(map(bool, given[:num_layers]))
