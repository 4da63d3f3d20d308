"""Llama 4: attention within chunks, some layers that see everything without positions, experts beside one of all tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from jaxengine.device.layers.experts import ExpertsShape
from jaxengine.device.layers.routing import Routing
from jaxengine.device.layers.self_attention import AttentionShape, Temperature
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.config.language_part import language_section, tower_section
from jaxengine.device.models.config.rotary_config import read_layer_types, read_rotary_layers, read_shared
from jaxengine.device.models.shared.experts import TRAINING, SharedExpertsConfig, SharedExpertsDecoder, check_chosen
from jaxengine.device.models.shared.rotary_decoder import (
    WITHOUT_MLP,
    bias_rules,
    half_split_rotary,
)
from jaxengine.device.models.shared.seeing import Seeing, seeing_rules
from jaxengine.device.models.towers.llama4 import Llama4Tower
from jaxengine.device.weights.rules import Ignore, Rule, chain, part, transpose
from jaxengine.errors import ConfigError

FED = "[model.]layers.*.feed_forward"
PERIOD = 4
"""Of so many layers the last has no positions and sees everything, where config.json does not say which."""
CHUNKED, FULL = "chunked_attention", "full_attention"
PARTS = ("gate", "up", "down")


@dataclass(frozen=True, kw_only=True)
class Llama4Config(SharedExpertsConfig):
    """`chunks` is of each layer how many positions its chunks have, None of those that see everything.

    `rotary` says of each layer whether its queries and keys are turned by their position, and normalised if `qk_norm`;
    `temperature` is that of the others.
    """

    chunks: tuple[int | None, ...]
    rotary: tuple[bool, ...]
    temperature: Temperature | None


class Llama4ForCausalLM(SharedExpertsDecoder):
    """A `Model`. `moe_layers` and `interleave_moe_layer_step` say which layers have experts."""

    WEIGHTS: ClassVar[Sequence[Rule | Ignore]] = (
        *half_split_rotary(
            (
                *WITHOUT_MLP,
                *bias_rules("q", "k", "v", "o"),
            )
        ),
        *(Rule(f"layers.*.mlp.{part}.weight", f"{FED}.{part}_proj.weight") for part in PARTS),
        *(Rule(f"layers.*.mlp.shared.{part}.weight", f"{FED}.shared_expert.{part}_proj.weight") for part in PARTS),
        Rule("layers.*.mlp.routed.router", f"{FED}.router.weight"),
        *(
            Rule(
                f"layers.*.mlp.routed.{name}.weight",
                f"{FED}.experts.gate_up_proj",
                chain(transpose, part(number, 2)),
                each=True,
            )
            for number, name in enumerate(("gate", "up"))
        ),
        Rule("layers.*.mlp.routed.down.weight", f"{FED}.experts.down_proj", transpose, each=True),
    )
    IGNORED: ClassVar[Mapping[str, Ignored]] = {
        **TRAINING,
        "router_jitter_noise": Ignored("only used in training"),
        "for_llm_compressor": Ignored("how a tool quantises it"),
        "cache_implementation": Ignored("how transformers keeps keys and values"),
    }
    config: Llama4Config

    @classmethod
    def read_config(cls, reader: ConfigReader) -> Llama4Config:
        shared = read_shared(
            reader, kv_heads=8, head_dim=128, theta=500_000.0, epsilon=1e-5, interleaved=True,
            mlp_key="intermediate_size_mlp",
        )  # fmt: skip
        num_layers = shared["num_layers"]
        inner = reader.optional_size("intermediate_size", 8192)
        experts = ExpertsShape(
            width=shared["hidden_size"],
            inner=inner,
            activation=shared["activation"],
            routing=Routing(
                count=reader.optional_size("num_local_experts", 16),
                chosen=reader.optional_size("num_experts_per_tok", 1),
                normalised=False,
                sigmoid=True,
            ),
            weighs_input=True,
        )
        check_chosen(experts)
        rotary = read_rotary_layers(reader, num_layers, period=PERIOD)
        chunks = _read_chunks(reader, rotary)
        bias = reader.optional("attention_bias", False, bool)
        return Llama4Config(
            **shared,
            windows=chunks,  # what lies in a token's chunk lies in a window of that size
            qkv_bias=bias,
            output_bias=bias,
            qk_norm=reader.optional("use_qk_norm", True, bool),
            experts=experts,
            expert_layers=_read_expert_layers(reader, num_layers),
            shared_size=inner,
            chunks=chunks,
            rotary=rotary,
            temperature=_read_temperature(reader),
        )

    def attention_shape(self, layer: int) -> AttentionShape:
        config = self.config
        shape = replace(super().attention_shape(layer), window=None, chunk=config.chunks[layer], norm_affine=False)
        if config.rotary[layer]:
            return shape
        return replace(shape, rope=None, norm_epsilon=None, temperature=config.temperature)


class Llama4ForConditionalGeneration(Seeing, Llama4ForCausalLM):
    """With what sees pictures."""

    TOWER = Llama4Tower
    WEIGHTS = seeing_rules(Llama4ForCausalLM.WEIGHTS, Llama4Tower.WEIGHTS)
    IGNORED: ClassVar[Mapping[str, Ignored]] = dict.fromkeys(
        tuple(f"{token}_token_{kind}" for token in ("boi", "eoi", "image") for kind in ("index", "id")),
        Ignored("read where prompts are taken in"),
    )

    @classmethod
    def read_config(cls, reader: ConfigReader) -> Llama4Config:
        text = Llama4ForCausalLM.read_config(language_section(reader, Llama4ForCausalLM.IGNORED))
        if reader.raw("vision_config") is None:  # a file of the language model alone
            return text
        section = tower_section(reader, Llama4Tower.IGNORED)
        return replace(text, tower=Llama4Tower.read_config(section, out_size=text.hidden_size))


def _read_chunks(reader: ConfigReader, rotary: tuple[bool, ...]) -> tuple[int | None, ...]:
    chunk = reader.nullable_size("attention_chunk_size", 8192)
    types = read_layer_types(reader, len(rotary), known=(CHUNKED, FULL)) or tuple(
        CHUNKED if positions else FULL for positions in rotary
    )
    return tuple(chunk if kind == CHUNKED else None for kind in types)


def _read_expert_layers(reader: ConfigReader, num_layers: int) -> tuple[int, ...]:
    step = reader.optional_size("interleave_moe_layer_step", 1)
    given = reader.raw("moe_layers")
    if given is None:
        return tuple(range(step - 1, num_layers, step))
    if not isinstance(given, list) or any(layer not in range(num_layers) for layer in given):
        raise ConfigError(
            f"config.json: moe_layers must be a list of numbers of the {num_layers} layers, got {given!r}"
        )
    return tuple(sorted(set(given)))


def _read_temperature(reader: ConfigReader) -> Temperature | None:
    """`attn_temperature_tuning` is a boolean; some files have a number, which transformers takes for true too."""
    tuned = reader.raw("attn_temperature_tuning", True)
    floor = reader.optional_size("floor_scale", 8192)
    share = reader.optional("attn_scale", 0.1, float)
    if not isinstance(tuned, (bool, int)):
        raise ConfigError(f"config.json: attn_temperature_tuning must be true or false, got {tuned!r}")
    return Temperature(floor=float(floor), share=share) if tuned else None
