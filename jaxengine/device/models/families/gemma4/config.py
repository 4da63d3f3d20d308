"""What Gemma 4 reads of config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jaxengine.device.layers.activation import ACTIVATIONS
from jaxengine.device.layers.experts import ExpertsShape
from jaxengine.device.layers.rotary import Rope
from jaxengine.device.layers.routing import Routing
from jaxengine.device.layers.sharding import Layout, check_divisible
from jaxengine.device.models.config.decoder_config import DecoderConfig, read_stored_dtype
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.rope import read_rope_section
from jaxengine.device.models.config.rotary_config import read_windows_by_type
from jaxengine.device.models.shared.experts import check_chosen
from jaxengine.errors import ConfigError

WINDOW, PERIOD = 512, 6
ROPES: Mapping[str, Mapping[str, Any]] = {
    "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
}
"""Hugging Face's defaults."""


@dataclass(frozen=True, kw_only=True)
class Gemma4Config(DecoderConfig):
    """Layers that see everything have `num_global_kv_heads` of `global_head_dim` channels and turn by `global_rope`.

    With `keys_as_values` these have no values of their own. The last `num_readers` layers read what the last one of their kind
    before them keeps, and have twice the feed-forward channels where `wide`. `beside` is the size of each layer's embeddings,
    of which there are `beside_vocab_size`; 0 is none. `logit_cap` bounds logits smoothly. Where something is shown, layers are
    given the embeddings of the token `padding` beside. With `sight` tokens of a picture see each other, in layers with a window.
    """

    rms_norm_eps: float
    activation: str
    attention_bias: bool
    num_global_kv_heads: int
    global_head_dim: int
    global_rope: Rope
    local_rope: Rope
    keys_as_values: bool
    num_readers: int
    wide: bool
    beside: int
    beside_vocab_size: int
    logit_cap: float | None
    padding: int = 0
    sight: bool = False

    @property
    def reader_layers(self) -> tuple[int, ...]:
        """The layers that keep nothing."""
        return tuple(range(self.num_layers - self.num_readers, self.num_layers))

    def source_of(self, layer: int) -> int | None:
        """The layer that keeps what this one reads; None: it reads what it keeps itself."""
        if layer not in self.reader_layers:
            return None
        before, window = range(self.num_layers - self.num_readers), self.windows[layer]
        return max(other for other in before if self.windows[other] == window)

    def kv_shape(self, layer: int) -> tuple[int, int]:
        """How many KV heads a layer has, without repeats, and their size."""
        if self.windows[layer] is None:
            return self.num_global_kv_heads, self.global_head_dim
        return self.num_kv_heads, self.head_dim

    def check_layout(self, layout: Layout) -> None:
        super().check_layout(layout)
        devices = layout.shards("heads")
        check_divisible(devices, heads=self.num_heads, kv_heads=self.num_global_kv_heads, mlp=self.mlp_size)
        if self.experts is not None:
            layout.check_experts(count=self.experts.count, inner=self.experts.inner)
        shapes = {self.kv_shape(layer) for layer in range(self.num_layers)}
        sizes = {heads * head_dim for heads, head_dim in shapes}
        if len(sizes) < len(shapes) and devices > min(heads for heads, _ in shapes):
            raise ConfigError(
                f"tensor_parallel_size={devices}: KV heads of this model cannot be repeated, as those of all its layers "
                f"together have {sizes.pop()} channels; use at most {min(heads for heads, _ in shapes)}"
            )


def read_gemma4(reader: ConfigReader) -> Gemma4Config:
    num_layers, hidden_size = reader.size("num_hidden_layers"), reader.size("hidden_size")
    max_positions = reader.optional("max_position_embeddings", 131_072, int)
    head_dim, kv_heads = reader.optional_size("head_dim", 256), reader.optional_size("num_key_value_heads", 4)
    keys_as_values = reader.optional("attention_k_eq_v", False, bool)
    windows = (
        *read_windows_by_type(reader, num_layers, window=WINDOW, period=PERIOD)[:-1],
        None,
    )  # the last sees everything
    global_kv_heads, global_head_dim = _read_global_heads(
        reader, windows, kv_heads=kv_heads, head_dim=head_dim, keys_as_values=keys_as_values
    )
    sections = reader.section("rope_parameters") or ConfigReader(ROPES)
    global_rope, local_rope = (
        read_rope_section(
            reader,
            sections.section(kind),
            outer=None,
            default=ROPES[kind]["rope_theta"],
            head_dim=size,
            max_positions=max_positions,
        )
        for kind, size in zip(ROPES, (global_head_dim, head_dim), strict=True)
    )
    readers = reader.optional("num_kv_shared_layers", 0, int)
    if not 0 <= readers < num_layers or set(windows) != set(windows[: num_layers - readers]):
        raise ConfigError(
            f"config.json: num_kv_shared_layers={readers}: before the last {readers} of {num_layers} layers there must be one of "
            "each kind, whose keys and values they read"
        )
    activation = reader.choice("hidden_activation", "gelu_pytorch_tanh", ACTIVATIONS)
    return Gemma4Config(
        vocab_size=reader.optional("vocab_size", 262_144, int),
        hidden_size=hidden_size,
        mlp_size=reader.size("intermediate_size"),
        num_layers=num_layers,
        num_heads=reader.optional("num_attention_heads", 8, int),
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        max_position_embeddings=max_positions,
        tie_word_embeddings=reader.optional("tie_word_embeddings", True, bool),
        dtype=read_stored_dtype(reader),
        windows=windows,
        rms_norm_eps=reader.optional("rms_norm_eps", 1e-6, float),
        activation=activation,
        attention_bias=reader.optional("attention_bias", False, bool),
        num_global_kv_heads=global_kv_heads,
        global_head_dim=global_head_dim,
        global_rope=global_rope,
        local_rope=local_rope,
        keys_as_values=keys_as_values,
        num_readers=readers,
        wide=reader.optional("use_double_wide_mlp", False, bool),
        beside=reader.optional("hidden_size_per_layer_input", 256, int),
        beside_vocab_size=reader.optional_size("vocab_size_per_layer_input", 262_144),
        logit_cap=reader.nullable("final_logit_softcapping", None, float),
        padding=reader.nullable("pad_token_id", 0, int) or 0,
        sight=_read_sight(reader),
        experts=_read_experts(reader, hidden_size, activation),
    )


def _read_sight(reader: ConfigReader) -> bool:
    asked = reader.nullable("use_bidirectional_attention", None, str)
    if asked not in (None, "vision"):
        raise ConfigError(
            f"config.json: use_bidirectional_attention={asked!r} is not built: attention to later tokens is for pictures "
            "('vision'), or null"
        )
    return asked is not None


def _read_global_heads(
    reader: ConfigReader, windows: tuple[int | None, ...], *, kv_heads: int, head_dim: int, keys_as_values: bool
) -> tuple[int, int]:
    """How many KV heads layers have that see everything, and their size: by key, or by layer as transformers 5.23 writes it."""
    size = reader.optional_size("global_head_dim", 512)
    count = reader.nullable_size("num_global_key_value_heads", None) if keys_as_values else None
    if not keys_as_values:
        reader.raw("num_global_key_value_heads")
    by_layer = reader.raw("per_layer_config")
    if by_layer is None:
        return count or kv_heads, size
    if by_layer == {}:
        return kv_heads, head_dim
    own = {"num_key_value_heads": kv_heads, "head_dim": head_dim}
    whole = {str(layer) for layer, window in enumerate(windows) if window is None}
    changes = [by_layer[layer] for layer in sorted(by_layer)] if isinstance(by_layer, Mapping) else []
    if not changes or {*by_layer} != whole or any(one != changes[0] or one.keys() - own.keys() for one in changes):
        raise ConfigError(
            f"config.json: per_layer_config must give {' and '.join(own)} to layers {', '.join(sorted(whole))}, which see "
            f"everything, the same to all of them, got {by_layer!r}"
        )
    heads = {**own, **changes[0]}
    return heads["num_key_value_heads"], heads["head_dim"]


def _read_experts(reader: ConfigReader, width: int, activation: str) -> ExpertsShape | None:
    count, chosen = reader.nullable_size("num_experts", None), reader.nullable_size("top_k_experts", None)
    inner = reader.nullable_size("moe_intermediate_size", None)
    if not reader.optional("enable_moe_block", False, bool):
        return None
    if count is None or chosen is None or inner is None:
        raise ConfigError(
            "config.json: enable_moe_block needs num_experts, top_k_experts and moe_intermediate_size, got "
            f"{count}, {chosen} and {inner}"
        )
    routing = Routing(count=count, chosen=chosen, normalised=True)
    experts = ExpertsShape(width=width, inner=inner, activation=activation, routing=routing, scaled=True)
    check_chosen(experts, key="top_k_experts")
    return experts
