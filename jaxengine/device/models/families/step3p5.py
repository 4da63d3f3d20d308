"""Step 3.5: windows with more heads than other layers, a gate of each head, experts beside one that all tokens take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from jaxengine.device.layers.activation import ACTIVATIONS, Gate, LimitedGate
from jaxengine.device.layers.block import FeedForward
from jaxengine.device.layers.experts import ExpertsShape, SharedSparseMLP
from jaxengine.device.layers.mlp import GatedMLP
from jaxengine.device.layers.norm import RMSNorm
from jaxengine.device.layers.rotary import Rope
from jaxengine.device.layers.routing import Routing
from jaxengine.device.layers.self_attention import AttentionShape
from jaxengine.device.layers.sharding import Layout, check_divisible
from jaxengine.device.models.config.decoder_config import read_stored_dtype
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.config.language_part import language_rules, language_section
from jaxengine.device.models.config.rope import DEFAULT_THETA, read_rope_section
from jaxengine.device.models.shared.experts import DRAFTS, TRAINING, SharedExpertsConfig, check_chosen, read_drafts
from jaxengine.device.models.shared.rotary_decoder import QK_NORMS, ROTARY_DECODER_WEIGHTS, bias_rules
from jaxengine.device.models.shared.two_ropes import TwoRopesConfig, TwoRopesDecoder, half_split_two
from jaxengine.device.weights.rules import Ignore, Rule
from jaxengine.errors import ConfigError

LAYER, NORM_OFFSET = "[model.]layers.*", 1.0
FULL, WINDOW = "full_attention", "sliding_attention"
AS_PUBLISHED: Mapping[str, Ignored] = {
    name: Ignored("how these models always are", allowed=(value,))
    for name, value in (
        ("use_head_wise_attn_gate", True),
        ("norm_expert_weight", True),
        ("use_moe", True),
        ("use_moe_router_bias", True),
        ("use_qk_norm", True),
        ("zero_centered", True),
        ("moe_router_activation", "sigmoid"),
        ("att_impl_type", "GQA"),
    )
}


@dataclass(frozen=True, kw_only=True)
class Step3p5Config(SharedExpertsConfig, TwoRopesConfig):
    """Layers with a window have `window_heads`; scores are divided by the root of `scale`.

    `limits` bound what the gates of each layer's experts let through, `shared_limits` those of its other feed-forward.
    """

    scale: float
    window_heads: int
    limits: tuple[float | None, ...]
    shared_limits: tuple[float | None, ...]

    def check_layout(self, layout: Layout) -> None:
        super().check_layout(layout)
        check_divisible(layout.shards("heads"), heads=self.window_heads, kv_heads=self.num_kv_heads, mlp=0)


class Step3p5ForCausalLM(TwoRopesDecoder):
    """A `Model`."""

    WEIGHTS: ClassVar[Sequence[Rule | Ignore]] = (
        *half_split_two(
            (
                *ROTARY_DECODER_WEIGHTS,
                *bias_rules("q", "k", "v", "o", "gate", "up", "down"),
                *QK_NORMS,
            )
        ),
        Rule("layers.*.attention.gate.weight", f"{LAYER}.self_attn.g_proj.weight"),
        Rule("layers.*.mlp.routed.router", f"{LAYER}.moe.gate.weight"),
        Rule("layers.*.mlp.routed.correction", f"{LAYER}.moe.router_bias"),
        *(
            row
            for part in ("gate", "up", "down")
            for row in (
                Rule(f"layers.*.mlp.routed.{part}.weight", f"{LAYER}.moe.{part}_proj.weight", each=True),
                *(
                    Rule(f"layers.*.mlp.shared.{part}.{kind}", f"{LAYER}.share_expert.{part}_proj.{kind}")
                    for kind in ("weight", "bias")
                ),
            )
        ),
        DRAFTS,
    )
    IGNORED: ClassVar[Mapping[str, Ignored]] = {
        **TRAINING,
        **AS_PUBLISHED,
        "auto_map": Ignored("code of the repository, which is never run"),
        "need_fp32_gate": Ignored("the router's scores are always float32"),
        **dict.fromkeys(
            ("mtp_layer_types", "mtp_mlp_layer_types"), Ignored("layers that predict several tokens are left unread")
        ),
        "per_layer_config": Ignored("num_sliding_attention_heads says it"),
        "max_seq_len": Ignored("max_position_embeddings says it"),
        "use_rope_layers": Ignored("every layer's heads turn", allowed=(None, [])),
    }
    config: Step3p5Config

    @classmethod
    def read_config(cls, reader: ConfigReader) -> Step3p5Config:
        num_layers, width = reader.size("num_hidden_layers"), reader.size("hidden_size")
        kinds = _of_layers(reader, "layer_types", num_layers, (FULL,) * num_layers)
        num_heads, max_positions = (
            reader.size("num_attention_heads"),
            reader.optional_size("max_position_embeddings", 128_000),
        )
        head_dim = reader.nullable_size("head_dim", None) or width // num_heads
        rope, local_rope = _read_ropes(reader, kinds, head_dim=head_dim, max_positions=max_positions)
        bias, activation = (
            reader.optional("attention_bias", False, bool),
            reader.choice("hidden_act", "silu", ACTIVATIONS),
        )
        return Step3p5Config(
            vocab_size=reader.size("vocab_size"),
            hidden_size=width,
            mlp_size=reader.optional_size("intermediate_size", 11_264),
            num_layers=num_layers,
            num_heads=num_heads,
            num_kv_heads=reader.optional_size("num_key_value_heads", reader.optional_size("num_attention_groups", 8)),
            head_dim=head_dim,
            max_position_embeddings=max_positions,
            tie_word_embeddings=reader.optional("tie_word_embeddings", False, bool),
            dtype=read_stored_dtype(reader),
            rms_norm_eps=reader.optional("rms_norm_eps", 1e-5, float),
            activation=activation,
            rope=rope,
            local_rope=local_rope,
            windows=_read_windows(reader, kinds),
            qkv_bias=bias,
            output_bias=bias,
            mlp_bias=reader.optional("mlp_bias", False, bool),
            qk_norm=True,
            scale=reader.nullable("query_pre_attn_scalar", None, float) or float(head_dim),
            window_heads=_read_window_heads(reader, num_heads),
            experts=_read_experts(reader, width, activation),
            expert_layers=_read_expert_layers(reader, num_layers),
            shared_size=reader.optional_size("share_expert_dim", reader.optional_size("share_expert_dims", 1280)),
            limits=_of_layers(reader, "swiglu_limits", num_layers, (None,) * num_layers),
            shared_limits=_of_layers(reader, "swiglu_limits_shared", num_layers, (None,) * num_layers),
            draft_layers=read_drafts(reader, num_layers, default=0),
        )

    def make_norm(self) -> RMSNorm:
        config = self.config
        return RMSNorm(config.hidden_size, epsilon=config.rms_norm_eps, offset=NORM_OFFSET, context=self.context)

    def attention_shape(self, layer: int) -> AttentionShape:
        config, shape = self.config, super().attention_shape(layer)
        return replace(
            shape,
            num_heads=config.num_heads if shape.window is None else config.window_heads,
            scale=config.scale**-0.5,
            norm_offset=NORM_OFFSET,
            gated=True,
            gates_heads=True,
        )

    def feed_forward(self, layer: int) -> FeedForward:
        config = self.config
        of_all = self._gate(config.shared_limits[layer])
        if layer not in config.expert_layers:
            return GatedMLP(
                config.hidden_size, config.mlp_size, activation=of_all, bias=config.mlp_bias, context=self.context
            )
        return SharedSparseMLP(
            replace(config.experts, activation=self._gate(config.limits[layer])),
            shared=config.shared_size,
            shared_activation=of_all,
            weighed=False,
            bias=config.mlp_bias,
            context=self.context,
        )

    def _gate(self, limit: float | None) -> Gate:
        activation = self.config.activation
        return LimitedGate(activation=activation, limit=limit) if limit else activation


class Step3p7ForConditionalGeneration(Step3p5ForCausalLM):
    """The language model of one that also sees pictures, of which only text is asked."""

    WEIGHTS = language_rules(Step3p5ForCausalLM.WEIGHTS, ("vision_model", "vit_large_projector"))
    IGNORED: ClassVar[Mapping[str, Ignored]] = {
        "auto_map": Ignored("code of the repository, which is never run"),
        **dict.fromkeys(
            (
                "vision_config",
                "image_token_id",
                "image_token_len",
                "patch_token_len",
                "im_start_token",
                "im_end_token",
                "im_patch_token",
                "projector_bias",
                "understand_projector_stride",
                "use_im_start_end",
                "vision_select_layer",
            ),
            Ignored("pictures are refused"),
        ),
    }

    @classmethod
    def read_config(cls, reader: ConfigReader) -> Step3p5Config:
        return super().read_config(language_section(reader, Step3p5ForCausalLM.IGNORED))


def _of_layers(reader: ConfigReader, key: str, num_layers: int, default: tuple[Any, ...]) -> tuple[Any, ...]:
    """A list that has something of each layer, and may have more behind, of layers that predict several tokens.

    Raises:
        ConfigError: it is something else.
    """
    given = reader.raw(key)
    if given is None:
        return default
    if not isinstance(given, list) or len(given) < num_layers:
        raise ConfigError(
            f"config.json: {key} must be a list of at least {num_layers}, of each layer one, got {given!r}"
        )
    return tuple(given[:num_layers])


def _read_ropes(
    reader: ConfigReader, kinds: tuple[str, ...], *, head_dim: int, max_positions: int
) -> tuple[Rope, Rope]:
    """Of layers that see everything and of the others: a section of each, or lists with the base and the share of each layer.

    Scaling beside the lists is of layers that see everything.
    """
    sections, scaling = reader.section("rope_parameters"), reader.section("rope_scaling")
    if scaling is not None and reader.raw("yarn_only_types", [FULL]) != [FULL]:
        raise ConfigError(f"config.json: yarn_only_types is not built but as {[FULL]!r}")
    thetas, shares = reader.raw("rope_theta"), reader.raw("partial_rotary_factors")

    def rope(kind: str) -> Rope:
        layer = kinds.index(kind) if kind in kinds else 0
        section = sections.section(kind) if sections is not None else scaling if kind == FULL else None
        theta = thetas[layer] if isinstance(thetas, list) else thetas
        return read_rope_section(
            reader,
            section,
            outer=None if theta is None else float(theta),
            default=DEFAULT_THETA,
            head_dim=head_dim,
            max_positions=max_positions,
            partial_rotary=shares[layer] if shares else 1.0,
        )

    return rope(FULL), rope(WINDOW) if WINDOW in kinds else rope(FULL)


def _read_windows(reader: ConfigReader, kinds: tuple[str, ...]) -> tuple[int | None, ...]:
    window = reader.nullable_size("sliding_window", None)
    if set(kinds) - {FULL, WINDOW} or (window is None and WINDOW in kinds):
        raise ConfigError(
            f"config.json: layer_types must be {FULL} or {WINDOW}, which needs a sliding_window; got {kinds!r}"
        )
    return tuple(window if kind == WINDOW else None for kind in kinds)


def _read_window_heads(reader: ConfigReader, num_heads: int) -> int:
    """Published files have a section of layers with a window, in which only the number of heads may differ."""
    other = reader.section("attention_other_setting")
    published = None if other is None else other.nullable_size("num_attention_heads", None)
    if other is not None:
        for key in ("attention_type", "num_attention_groups", "head_dim", "true_head_dim"):
            other.raw(key)
    return reader.nullable_size("num_sliding_attention_heads", None) or published or num_heads


def _read_expert_layers(reader: ConfigReader, num_layers: int) -> tuple[int, ...]:
    """By `mlp_layer_types`, or the numbers in `moe_layers_enum`; all but the first three where neither is there."""
    kinds, numbers = _of_layers(reader, "mlp_layer_types", num_layers, ()), reader.raw("moe_layers_enum")
    if kinds:
        return tuple(layer for layer, kind in enumerate(kinds) if kind == "sparse")
    if numbers is None:
        return tuple(range(3, num_layers))
    listed = {int(number) for number in (numbers.split(",") if isinstance(numbers, str) else numbers)}
    return tuple(layer for layer in range(num_layers) if layer in listed)


def _read_experts(reader: ConfigReader, width: int, activation: str) -> ExpertsShape:
    experts = ExpertsShape(
        width=width,
        inner=reader.optional_size("moe_intermediate_size", 1280),
        activation=activation,
        routing=Routing(
            count=reader.optional_size("n_routed_experts", reader.optional_size("moe_num_experts", 288)),
            chosen=reader.optional_size("num_experts_per_tok", reader.optional_size("moe_top_k", 8)),
            normalised=True,
            sigmoid=True,
            corrected=True,
            scale=reader.optional("moe_router_scaling_factor", 1.0, float),
        ),
    )
    check_chosen(experts)
    return experts
