"""Nemotron-H: each layer is one thing, a state space (Mamba 2), attention without positions, a feed-forward, or experts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import jax
from flax import nnx

from jaxengine.device.layers.activation import ACTIVATIONS
from jaxengine.device.layers.block import HalfBlock
from jaxengine.device.layers.context import ModelContext
from jaxengine.device.layers.experts import ExpertsShape, SharedSparseMLP
from jaxengine.device.layers.mlp import MLP
from jaxengine.device.layers.norm import RMSNorm
from jaxengine.device.layers.self_attention import AttentionShape, SelfAttention
from jaxengine.device.layers.sharding import Layout, check_divisible
from jaxengine.device.layers.state_space import StateSpace, StateSpaceShape
from jaxengine.device.layers.step import Shared
from jaxengine.device.models.config.decoder_config import FOR_THE_START, DecoderConfig, read_stored_dtype
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.config.layer_kinds import read_layer_kinds
from jaxengine.device.models.shared.decoder import Decoder
from jaxengine.device.models.shared.experts import TRAINING, check_chosen, read_corrected_routing
from jaxengine.device.models.shared.state_spaces import (
    INITIAL_STEPS,
    check_state_space,
    read_state_space,
    state_space_rules,
)
from jaxengine.device.weights.rules import Ignore, Rule, repeat_kv_heads
from jaxengine.errors import ConfigError
from pallas_kernels import AdapterRows

MIXER = "[backbone.]layers.*.mixer"
PATTERN = {"M": "recurrent", "*": "full", "-": "mlp", "E": "experts"}
DEFAULT_PATTERN = "ME*-"
"""Hugging Face's."""
KINDS = {
    "linear_attention": "recurrent",
    "mamba": "recurrent",
    "full_attention": "full",
    "attention": "full",
    "mlp": "mlp",
    "moe": "experts",
}


@dataclass(frozen=True, kw_only=True)
class NemotronHConfig(DecoderConfig):
    """`kinds` says of each layer what it is, one of `PATTERN`'s values. `shared_size` is what all tokens take beside experts.

    `draft_kinds` are those of the blocks that predict several tokens.
    """

    kinds: tuple[str, ...]
    norm_epsilon: float
    activation: str
    mlp_bias: bool
    state_space: StateSpaceShape
    shared_size: int
    draft_kinds: tuple[str, ...] = field(default=(), metadata=FOR_THE_START)

    def of_kind(self, *kinds: str) -> tuple[int, ...]:
        """The numbers of these layers."""
        return tuple(layer for layer, kind in enumerate(self.kinds) if kind in kinds)

    def check_layout(self, layout: Layout) -> None:
        for size in (self.mlp_size if "mlp" in self.kinds else 0, self.shared_size if "experts" in self.kinds else 0):
            check_divisible(layout.shards("heads"), heads=self.num_heads, kv_heads=self.num_kv_heads, mlp=size)
        if "recurrent" in self.kinds:
            check_state_space(self.state_space, layout)
        if self.experts is not None:
            layout.check_experts(count=self.experts.count, inner=self.experts.inner)


class NemotronHForCausalLM(Decoder):
    """A `Model`."""

    WEIGHTS: ClassVar[Sequence[Rule | Ignore]] = (
        Rule("embed.table", "[backbone.]embeddings.weight"),
        Rule("layers.*.norm.scale", "[backbone.]layers.*.norm.weight"),
        *state_space_rules(MIXER),
        Rule("layers.*.attention.q.weight", f"{MIXER}.q_proj.weight"),
        Rule("layers.*.attention.k.weight", f"{MIXER}.k_proj.weight", repeat_kv_heads),
        Rule("layers.*.attention.v.weight", f"{MIXER}.v_proj.weight", repeat_kv_heads),
        Rule("layers.*.attention.o.weight", f"{MIXER}.o_proj.weight"),
        Rule("layers.*.mlp.routed.router", f"{MIXER}.gate.weight"),
        Rule("layers.*.mlp.routed.correction", f"{MIXER}.gate.e_score_correction_bias"),
        *(
            Rule(f"layers.*.mlp.{name}.{x}", f"{MIXER}.{stored}.{x}")
            for name, stored in (("narrow", "fc1_latent_proj"), ("widen", "fc2_latent_proj"))
            for x in ("weight", "bias")
        ),
        *(
            row
            for part in ("up", "down")
            for row in (
                *(Rule(f"layers.*.mlp.{part}.{x}", f"{MIXER}.{part}_proj.{x}") for x in ("weight", "bias")),
                *(
                    Rule(f"layers.*.mlp.shared.{part}.{x}", f"{MIXER}.shared_experts.{part}_proj.{x}")
                    for x in ("weight", "bias")
                ),
                Rule(f"layers.*.mlp.routed.{part}.weight", f"{MIXER}.experts.{{expert}}.{part}_proj.weight"),
            )
        ),
        Rule("norm.scale", "[backbone.]norm_f.weight"),
        Rule("head.table", "lm_head.weight", absent_if="tie_word_embeddings"),
        Ignore("mtp.**", "predicts several tokens: read by what drafts"),
    )
    IGNORED: ClassVar[Mapping[str, Ignored]] = {
        **TRAINING,
        **INITIAL_STEPS,
        **dict.fromkeys(("rescale_prenorm_residual", "hidden_dropout"), Ignored("only used in training")),
        "auto_map": Ignored("code of the repository, which is never run"),
        "chunk_size": Ignored("how sums are cut, not what they are"),
        **dict.fromkeys(
            ("use_mamba_kernels", "moe_shared_expert_overlap", "residual_in_fp32"), Ignored("how it is computed, not what")
        ),
        "mamba_ssm_cache_dtype": Ignored("states are always float32", allowed=("float32",)),
        "num_logits_to_keep": Ignored("shapes what transformers returns"),
        "expand": Ignored("heads and their size say it"),
        "n_shared_experts": Ignored("moe_shared_expert_intermediate_size says it"),
        **dict.fromkeys(("rms_norm_eps", "norm_eps"), Ignored("layer_norm_epsilon holds")),
        "mamba_proj_bias": Ignored("use_bias says it", allowed=(False,)),
        "attention_bias": Ignored("attention has no biases", allowed=(False,)),
        "sliding_window": Ignored("no layer sees a window", allowed=(None,)),
        "num_nextn_predict_layers": Ignored("the first of the layers that predict several tokens is used for all"),
        **dict.fromkeys(("rope_theta", "partial_rotary_factor"), Ignored("positions turn nothing")),
    }  # fmt: skip
    config: NemotronHConfig

    def __init__(self, config: NemotronHConfig, context: ModelContext) -> None:
        super().__init__(config, context)
        self.layers = nnx.List([self.block(layer) for layer in range(config.num_layers)])
        self.norm = self.make_norm()

    @classmethod
    def read_config(cls, reader: ConfigReader) -> NemotronHConfig:
        hidden_size, num_heads = reader.size("hidden_size"), reader.optional_size("num_attention_heads", 32)
        epsilon = reader.optional("layer_norm_epsilon", 1e-5, float)
        activation = reader.choice("mlp_hidden_act", "relu2", ACTIVATIONS)
        kinds = _read_kinds(reader)
        return NemotronHConfig(
            vocab_size=reader.size("vocab_size"),
            hidden_size=hidden_size,
            mlp_size=reader.optional_size("intermediate_size", 21_504),
            num_layers=len(kinds),
            num_heads=num_heads,
            num_kv_heads=reader.nullable_size("num_key_value_heads", 8) or num_heads,
            head_dim=reader.optional_size("head_dim", reader.optional_size("attention_head_dim", 128)),
            max_position_embeddings=reader.optional_size("max_position_embeddings", 4096),
            tie_word_embeddings=reader.optional("tie_word_embeddings", False, bool),
            dtype=read_stored_dtype(reader),
            kinds=kinds,
            norm_epsilon=epsilon,
            activation=activation,
            mlp_bias=reader.optional("mlp_bias", False, bool),
            state_space=read_state_space(
                reader,
                hidden_size,
                epsilon=epsilon,
                heads="mamba_num_heads",
                head_dim="mamba_head_dim",
                state="ssm_state_size",
                activation="mamba_hidden_act",
            ),
            experts=_read_experts(reader, hidden_size, activation, present="experts" in kinds),
            shared_size=reader.optional_size("moe_shared_expert_intermediate_size", 7688),
            draft_kinds=_read_draft_kinds(reader),
        )

    def make_norm(self) -> RMSNorm:
        """A norm of the residual stream."""
        return RMSNorm(self.config.hidden_size, epsilon=self.config.norm_epsilon, context=self.context)

    def block(self, layer: int) -> HalfBlock:
        """The layer of this number."""
        config, context, norm = self.config, self.context, self.make_norm()
        match config.kinds[layer]:
            case "recurrent":
                return HalfBlock(mixer=StateSpace(config.state_space, context=context), norm=norm)
            case "full":
                return HalfBlock(attention=SelfAttention(self.attention_shape, context=context), norm=norm)
            case "mlp":
                mlp = MLP(
                    config.hidden_size,
                    config.mlp_size,
                    activation=config.activation,
                    bias=config.mlp_bias,
                    context=context,
                )
                return HalfBlock(mlp=mlp, norm=norm)
        assert config.experts is not None
        experts = SharedSparseMLP(
            config.experts, shared=config.shared_size, weighed=False, bias=config.mlp_bias, context=context
        )
        return HalfBlock(mlp=experts, norm=norm)

    @property
    def attention_shape(self) -> AttentionShape:
        """Of every layer that has attention."""
        config = self.config
        return AttentionShape(
            width=config.hidden_size,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            scale=config.head_dim**-0.5,
        )

    def embed_tokens(
        self, tokens: jax.Array, positions: jax.Array, adapters: AdapterRows | None = None
    ) -> tuple[jax.Array, Shared]:
        return self.embed(tokens, adapters), Shared()

    def final_norm(self, x: jax.Array) -> jax.Array:
        return self.norm(x)


def _read_kinds(reader: ConfigReader) -> tuple[str, ...]:
    """By `layers_block_type`, or a letter for each layer in `hybrid_override_pattern`.

    Raises:
        ConfigError: something else, or as many layers as another key does not say.
    """
    letters = reader.raw("hybrid_override_pattern")
    if letters is not None and (not isinstance(letters, str) or not letters or set(letters) - PATTERN.keys()):
        raise ConfigError(
            f"config.json: hybrid_override_pattern must be a text of {', '.join(PATTERN)}, one for each layer, got {letters!r}"
        )
    spelled = tuple(PATTERN[letter] for letter in letters or DEFAULT_PATTERN)
    names = reader.raw("layer_types", reader.raw("layers_block_type"))
    described = len(names) if isinstance(names, list) else len(spelled)
    count = reader.nullable_size("num_hidden_layers", None) or described
    if count != described:
        raise ConfigError(f"config.json: num_hidden_layers={count}, and {described} layers are described")
    return read_layer_kinds(reader, count, KINDS, default=spelled, key="layers_block_type")


def _read_draft_kinds(reader: ConfigReader) -> tuple[str, ...]:
    """What the blocks are that predict several tokens: by a letter each, or by names."""
    letters, names = reader.raw("mtp_hybrid_override_pattern"), reader.raw("mtp_layers_block_type")
    found = tuple(PATTERN.get(letter, letter) for letter in letters or ())
    found = found or tuple(KINDS.get(name, name) for name in names or ())
    if unknown := set(found) - {"full", "experts", "mlp"}:
        raise ConfigError(
            f"config.json: layers that predict several tokens are attention, experts or mlp, got {unknown}"
        )
    return found


def _read_experts(reader: ConfigReader, width: int, activation: str, *, present: bool) -> ExpertsShape | None:
    routing = read_corrected_routing(reader, count=8, chosen=2, groups=1, chosen_groups=1, scale=1.0)
    inner = reader.optional_size("moe_intermediate_size", 7688)
    narrow = reader.nullable_size("moe_latent_size", None)
    if not present:
        return None
    experts = ExpertsShape(
        width=narrow or width,
        scored_width=width,
        inner=inner,
        activation=activation,
        routing=routing,
        plain=True,
    )
    check_chosen(experts)
    return experts
