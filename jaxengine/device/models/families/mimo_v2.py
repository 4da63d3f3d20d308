"""MiMo-V2: windows with sinks, values of fewer channels than keys, and experts behind the first layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from jaxengine.device.layers.block import FeedForward
from jaxengine.device.layers.experts import ExpertsShape, SparseMLP
from jaxengine.device.layers.self_attention import AttentionShape
from jaxengine.device.layers.sharding import Layout, check_divisible
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.config.rope import read_rope_section
from jaxengine.device.models.config.rotary_config import read_layer_types, read_shared
from jaxengine.device.models.shared.experts import MLP, TRAINING, check_chosen, read_corrected_routing
from jaxengine.device.models.shared.rotary_decoder import ROTARY_DECODER_WEIGHTS, bias_rules, half_split_rotary
from jaxengine.device.models.shared.two_ropes import TwoRopesConfig, TwoRopesDecoder
from jaxengine.device.weights.rules import Array, Ignore, KvHeads, Rule, Transform
from jaxengine.errors import ConfigError

PERIOD, TURNING, LOCAL_THETA = 6, 0.334, 10_000.0
"""Hugging Face's: of so many layers the last sees everything, so much of a head turns, and the rotary base of windows."""


@dataclass(frozen=True, kw_only=True)
class MiMoV2Config(TwoRopesConfig):
    """Layers with a window have `window_kv_heads`; values have `value_dim` channels and are multiplied by `value_scale`."""

    window_kv_heads: int
    value_dim: int
    value_scale: float
    expert_layers: tuple[int, ...]

    def check_layout(self, layout: Layout) -> None:
        mlp = self.mlp_size if len(self.expert_layers) < self.num_layers else 0
        for kv_heads in (self.num_kv_heads, self.window_kv_heads):
            check_divisible(layout.shards("heads"), heads=self.num_heads, kv_heads=kv_heads, mlp=mlp)
        if self.experts is not None:
            layout.check_experts(count=self.experts.count, inner=self.experts.inner)


def _repeated(size: str) -> Transform:
    """As `repeat_kv_heads`, for layers of two numbers of heads; `size` names what they are large as."""

    def repeat(tensor: Array, config: KvHeads, shape: tuple[int, ...]) -> Array:
        assert isinstance(config, MiMoV2Config)
        heads = tensor.reshape(-1, getattr(config, size), *tensor.shape[1:])
        if len(heads) not in (config.num_kv_heads, config.window_kv_heads):
            raise ValueError(f"{len(heads)} KV heads are those of no layer")
        return np.repeat(heads, shape[0] // tensor.shape[0], axis=0).reshape(-1, *tensor.shape[1:])

    return repeat


def _of_two_kinds(row: Rule | Ignore) -> Rule | Ignore:
    for name, size in (("k", "head_dim"), ("v", "value_dim")):
        if isinstance(row, Rule) and row.target.startswith(f"layers.*.attention.{name}."):
            return replace(row, transform=_repeated(size))
    return row


class MiMoV2FlashForCausalLM(TwoRopesDecoder):
    """A `Model`."""

    WEIGHTS: ClassVar[Sequence[Rule | Ignore]] = (
        *half_split_rotary([_of_two_kinds(row) for row in (*ROTARY_DECODER_WEIGHTS, *bias_rules("q", "k", "v"))]),
        Rule("layers.*.attention.sinks", "[model.]layers.*.self_attn.attention_sink_bias"),
        Rule("layers.*.mlp.router", f"{MLP}.gate.weight"),
        Rule("layers.*.mlp.correction", f"{MLP}.gate.e_score_correction_bias"),
        *(
            Rule(f"layers.*.mlp.{part}.weight", f"{MLP}.experts.{{expert}}.{part}_proj.weight")
            for part in ("gate", "up", "down")
        ),
        Ignore("model.mtp.**", "predicts several tokens: read by what drafts"),
    )
    IGNORED: ClassVar[Mapping[str, Ignored]] = {
        **TRAINING,
        "auto_map": Ignored("code of the repository, which is never run"),
        "attention_chunk_size": Ignored("the published code does not read it"),
        "hybrid_block_size": Ignored("hybrid_layer_pattern says which layers see a window", allowed=(None,)),
        "add_swa_attention_sink_bias": Ignored("windows have sinks", allowed=(True,)),
        "add_full_attention_sink_bias": Ignored("other layers have none", allowed=(False,)),
        "scoring_func": Ignored("scores are sigmoids", allowed=("sigmoid",)),
        "topk_method": Ignored("shares are corrected while experts are chosen", allowed=("noaux_tc",)),
        "n_shared_experts": Ignored("no expert is taken by all tokens", allowed=(None, 0)),
        "num_nextn_predict_layers": Ignored("layers that predict several tokens are read by what drafts"),
    }
    config: MiMoV2Config

    @classmethod
    def read_config(cls, reader: ConfigReader) -> MiMoV2Config:
        epsilon = reader.optional("layernorm_epsilon", 1e-5, float)
        sections = reader.section("rope_parameters")
        shared = read_shared(
            reader,
            kv_heads=4,
            head_dim=192,
            epsilon=epsilon,
            theta=5e6,
            partial_rotary=TURNING,
            rope_part="full_attention",
        )
        local_rope = read_rope_section(
            reader,
            None if sections is None else sections.section("sliding_attention"),
            outer=reader.nullable("swa_rope_theta", None, float),
            default=LOCAL_THETA,
            head_dim=shared["head_dim"],
            max_positions=shared["max_position_embeddings"],
            partial_rotary=reader.optional("partial_rotary_factor", TURNING, float),
        )
        bias = reader.optional("attention_bias", False, bool)
        expert_layers = _read_layers(reader, shared["num_layers"], ("mlp_layer_types", "sparse"), "moe_layer_freq")
        return MiMoV2Config(
            **shared,
            local_rope=local_rope,
            windows=_read_windows(reader, shared["num_layers"]),
            qkv_bias=bias,
            **_read_heads(reader, shared),
            value_scale=reader.nullable("attention_value_scale", 0.707, float) or 1.0,
            expert_layers=tuple(range(1, shared["num_layers"])) if expert_layers is None else expert_layers,
            experts=_read_experts(reader, shared),
        )

    def attention_shape(self, layer: int) -> AttentionShape:
        config, shape = self.config, super().attention_shape(layer)
        shape = replace(shape, value_dim=config.value_dim, value_scale=config.value_scale)
        return shape if shape.window is None else replace(shape, num_kv_heads=config.window_kv_heads, sinks=True)

    def feed_forward(self, layer: int) -> FeedForward:
        experts = self.config.experts
        if experts is None or layer not in self.config.expert_layers:
            return super().feed_forward(layer)
        return SparseMLP(experts, context=self.context)


def _read_layers(
    reader: ConfigReader, num_layers: int, named: tuple[str, str], numbered: str
) -> tuple[int, ...] | None:
    """Layers of a kind by a list of names and which one is meant, or a list that has 1 for them; None where neither is there.

    Raises:
        ConfigError: lists of something else.
    """
    key, name = named
    for found, meant in ((reader.raw(key), name), (reader.raw(numbered), 1)):
        if found is None:
            continue
        if not isinstance(found, list) or len(found) != num_layers:
            raise ConfigError(
                f"config.json: {key if meant == name else numbered} must be a list of {num_layers}, got {found!r}"
            )
        return tuple(layer for layer, kind in enumerate(found) if kind == meant)
    return None


def _read_windows(reader: ConfigReader, num_layers: int) -> tuple[int | None, ...]:
    """`sliding_window_size` are the positions before a token's own; `sliding_window` counts that too."""
    before, window = reader.nullable_size("sliding_window_size", None), reader.nullable_size("sliding_window", 129)
    window = window if before is None else before + 1
    read_layer_types(reader, num_layers)
    windowed = _read_layers(reader, num_layers, ("layer_types", "sliding_attention"), "hybrid_layer_pattern")
    if windowed is None:
        windowed = tuple(layer for layer in range(1, num_layers) if (layer + 1) % PERIOD)
    if windowed and window is None:
        raise ConfigError("config.json: some layers see a window, and there is no sliding_window; set it")
    return tuple(window if layer in windowed else None for layer in range(num_layers))


def _read_heads(reader: ConfigReader, shared: Mapping[str, Any]) -> dict[str, Any]:
    """Of layers with a window, and of values.

    Raises:
        ConfigError: heads that differ between layers in another way than in the number of keys, or values larger than keys.
    """
    value_dim = reader.optional_size("v_head_dim", 128)
    same = {"swa_num_attention_heads": shared["num_heads"], "swa_head_dim": shared["head_dim"]}
    for key, size in {**same, "swa_v_head_dim": value_dim}.items():
        if reader.nullable_size(key, None) not in (None, size):
            raise ConfigError(f"config.json: {key} is not built but as in the other layers, {size}")
    if value_dim > shared["head_dim"]:
        raise ConfigError(f"config.json: v_head_dim={value_dim} must be at most head_dim={shared['head_dim']}")
    kv_heads = reader.nullable_size("swa_num_key_value_heads", None) or 2 * shared["num_kv_heads"]
    return {"window_kv_heads": kv_heads, "value_dim": value_dim}


def _read_experts(reader: ConfigReader, shared: Mapping[str, Any]) -> ExpertsShape:
    experts = ExpertsShape(
        width=shared["hidden_size"],
        inner=reader.optional_size("moe_intermediate_size", 2048),
        activation=shared["activation"],
        routing=read_corrected_routing(reader, count=256, chosen=8, groups=1, chosen_groups=1, scale=1.0),
    )
    check_chosen(experts)
    return experts
