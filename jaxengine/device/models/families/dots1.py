"""dots.llm1: experts behind the first layers, chosen as DeepSeek V3 chooses; heads of queries and keys are normalised."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from jaxengine.device.layers.experts import ExpertsShape
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.config.rotary_config import read_layer_types, read_shared
from jaxengine.device.models.shared.experts import (
    CORRECTION,
    SHARED_EXPERTS,
    TRAINING,
    SharedExpertsConfig,
    SharedExpertsDecoder,
    check_chosen,
    read_corrected_routing,
)
from jaxengine.device.models.shared.rotary_decoder import QK_NORMS, ROTARY_DECODER_WEIGHTS, bias_rules
from jaxengine.errors import ConfigError


class Dots1ForCausalLM(SharedExpertsDecoder):
    """A `Model`."""

    WEIGHTS = (
        *ROTARY_DECODER_WEIGHTS,
        *bias_rules("q", "k", "v", "o"),
        *QK_NORMS,
        *SHARED_EXPERTS,
        CORRECTION,
    )
    IGNORED: ClassVar[Mapping[str, Ignored]] = TRAINING

    @classmethod
    def read_config(cls, reader: ConfigReader) -> SharedExpertsConfig:
        shared = read_shared(reader, kv_heads=32, head_dim=None)
        num_layers = shared["num_layers"]
        attention_bias = reader.optional("attention_bias", False, bool)
        inner = reader.optional_size("moe_intermediate_size", 1408)
        experts = ExpertsShape(
            width=shared["hidden_size"],
            inner=inner,
            activation=shared["activation"],
            routing=read_corrected_routing(reader, count=128, chosen=6, groups=1, chosen_groups=1, scale=1.0),
        )
        check_chosen(experts)
        return SharedExpertsConfig(
            **shared,
            windows=_read_windows(reader, num_layers),
            qkv_bias=attention_bias,
            output_bias=attention_bias,
            qk_norm=True,
            experts=experts,
            expert_layers=tuple(range(reader.optional("first_k_dense_replace", 0, int), num_layers)),
            shared_size=inner * reader.optional_size("n_shared_experts", 2),
        )


def _read_windows(reader: ConfigReader, num_layers: int) -> tuple[int | None, ...]:
    """By `layer_types`, or from layer `max_window_layers` on.

    Raises:
        ConfigError: a layer sees a window, and there is none.
    """
    window = reader.nullable_size("sliding_window", 4096)
    first = reader.optional("max_window_layers", 62, int)
    types = read_layer_types(reader, num_layers)
    if types is None:
        return tuple(window if layer >= first else None for layer in range(num_layers))
    if window is None and "sliding_attention" in types:
        raise ConfigError("config.json: some layers see a window, and there is no sliding_window; set it")
    return tuple(window if kind == "sliding_attention" else None for kind in types)
