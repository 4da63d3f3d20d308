"""Gemma 3, its text model: five of six layers see a window, norms on both sides of each block, positions of two kinds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import jax
from flax import nnx

from jaxengine.device.layers.activation import ACTIVATIONS
from jaxengine.device.layers.block import Block, Norms
from jaxengine.device.layers.context import ModelContext
from jaxengine.device.layers.mlp import GatedMLP
from jaxengine.device.layers.norm import RMSNorm
from jaxengine.device.layers.rotary import Rope
from jaxengine.device.layers.row_attention import RowAttention
from jaxengine.device.layers.self_attention import AttentionShape, SelfAttention
from jaxengine.device.layers.step import Shared
from jaxengine.device.models.config.decoder_config import DecoderConfig, read_stored_dtype
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.config.language_part import language_section, tower_section
from jaxengine.device.models.config.rope import read_rope_section
from jaxengine.device.models.config.rotary_config import read_windows_by_type
from jaxengine.device.models.shared.decoder import Decoder
from jaxengine.device.models.shared.gemma import NORM_OFFSET, SANDWICH_NORM_WEIGHTS, scale_embeddings
from jaxengine.device.models.shared.rotary_decoder import QK_NORMS
from jaxengine.device.models.shared.seeing import Seeing, seeing_rules
from jaxengine.device.models.towers.siglip import Gemma3Tower
from jaxengine.device.weights.rules import Ignore, Rule
from jaxengine.errors import ConfigError
from pallas_kernels import AdapterRows

GLOBAL_THETA, LOCAL_THETA = 1_000_000.0, 10_000.0
WINDOW, PERIOD = 4096, 6
"""Hugging Face's defaults: positions that a token sees, and of so many layers the last sees everything."""
GLOBAL, LOCAL = 0, 1
"""Which of the step's angles are whose."""


@dataclass(frozen=True, kw_only=True)
class Gemma3Config(DecoderConfig):
    """Layers that see everything turn by `global_rope`, those with a window by `local_rope`."""

    rms_norm_eps: float
    activation: str
    scale: float
    attention_bias: bool
    global_rope: Rope
    local_rope: Rope


class Gemma3ForCausalLM(Decoder):
    """A `Model`."""

    WEIGHTS: ClassVar[Sequence[Rule | Ignore]] = (
        *SANDWICH_NORM_WEIGHTS,
        *QK_NORMS,
    )
    IGNORED: ClassVar[Mapping[str, Ignored]] = {
        "_sliding_window_pattern": Ignored("transformers writes it beside layer_types, which say the same"),
        "cache_implementation": Ignored("how transformers keeps keys and values"),
        "final_logit_softcapping": Ignored("capped logits are Gemma 2's", allowed=(None,)),
        "attn_logit_softcapping": Ignored("capped scores are Gemma 2's", allowed=(None,)),
    }

    config: Gemma3Config

    def __init__(self, config: Gemma3Config, context: ModelContext) -> None:
        super().__init__(config, context)

        def norm() -> RMSNorm:
            return RMSNorm(config.hidden_size, epsilon=config.rms_norm_eps, offset=NORM_OFFSET, context=context)

        def layer(window: int | None) -> Block:
            shape = AttentionShape(
                width=config.hidden_size,
                num_heads=config.num_heads,
                num_kv_heads=config.num_kv_heads,
                head_dim=config.head_dim,
                qkv_bias=config.attention_bias,
                output_bias=config.attention_bias,
                scale=config.scale,
                rope=GLOBAL if window is None else LOCAL,
                window=window,
                norm_epsilon=config.rms_norm_eps,
                norm_offset=NORM_OFFSET,
            )
            mlp = GatedMLP(
                config.hidden_size, config.mlp_size, activation=config.activation, bias=False, context=context
            )
            attends = RowAttention if config.whole_rows else SelfAttention
            return Block(attends(shape, context=context), mlp, norm=norm, norms=Norms.SANDWICH)

        self.layers = nnx.List([layer(window) for window in config.windows])
        self.norm = norm()

    @classmethod
    def read_config(cls, reader: ConfigReader) -> Gemma3Config:
        num_layers, hidden_size = reader.size("num_hidden_layers"), reader.size("hidden_size")
        head_dim = reader.nullable_size("head_dim", 256) or hidden_size // reader.size("num_attention_heads")
        global_rope, local_rope = _read_ropes(reader, head_dim=head_dim)
        whole_rows = bool(reader.nullable("use_bidirectional_attention", False, bool))
        windows = read_windows_by_type(reader, num_layers, window=WINDOW, period=PERIOD)
        if whole_rows:  # half a window on each side
            windows = tuple(None if window is None else window // 2 for window in windows)
        return Gemma3Config(
            vocab_size=reader.optional("vocab_size", 262_208, int),
            hidden_size=hidden_size,
            mlp_size=reader.size("intermediate_size"),
            num_layers=num_layers,
            num_heads=reader.optional("num_attention_heads", 8, int),
            num_kv_heads=reader.optional("num_key_value_heads", 4, int),
            head_dim=head_dim,
            max_position_embeddings=reader.optional("max_position_embeddings", 131_072, int),
            tie_word_embeddings=reader.optional("tie_word_embeddings", True, bool),
            dtype=read_stored_dtype(reader),
            rms_norm_eps=reader.optional("rms_norm_eps", 1e-6, float),
            activation=reader.choice("hidden_activation", "gelu_pytorch_tanh", ACTIVATIONS),
            scale=reader.optional("query_pre_attn_scalar", 256.0, float) ** -0.5,
            attention_bias=reader.optional("attention_bias", False, bool),
            windows=windows,
            whole_rows=whole_rows,
            global_rope=global_rope,
            local_rope=local_rope,
        )

    def embed_tokens(
        self, tokens: jax.Array, positions: jax.Array, adapters: AdapterRows | None = None
    ) -> tuple[jax.Array, Shared]:
        x = scale_embeddings(
            self.embed(tokens, adapters), hidden_size=self.config.hidden_size, dtype=self.context.dtype
        )
        ropes = self.config.global_rope, self.config.local_rope
        return x, Shared(tuple(rope.angles(positions) for rope in ropes))

    def final_norm(self, x: jax.Array) -> jax.Array:
        return self.norm(x)


class Gemma3ForConditionalGeneration(Seeing, Gemma3ForCausalLM):
    """The sizes that also see pictures, whose tokens see each other."""

    TOWER = Gemma3Tower
    SIGHT = True
    WEIGHTS = seeing_rules(Gemma3ForCausalLM.WEIGHTS, Gemma3Tower.WEIGHTS)
    IGNORED: ClassVar[Mapping[str, Ignored]] = dict.fromkeys(
        tuple(f"{name}_token_{kind}" for name in ("boi", "eoi", "image") for kind in ("index", "id")),
        Ignored("read where prompts are taken in"),
    )

    @classmethod
    def read_config(cls, reader: ConfigReader) -> Gemma3Config:
        text = Gemma3ForCausalLM.read_config(language_section(reader, Gemma3ForCausalLM.IGNORED))
        section = tower_section(reader, Gemma3Tower.IGNORED)
        tokens = reader.optional_size("mm_tokens_per_image", 256)
        return replace(text, tower=Gemma3Tower.read_config(section, out_size=text.hidden_size, tokens=tokens))


def _read_ropes(reader: ConfigReader, *, head_dim: int) -> tuple[Rope, Rope]:
    """Of layers that see everything and of the others; transformers 5 has a section for each, 4 three keys at the top."""
    sections, scaling = reader.section("rope_parameters"), reader.section("rope_scaling")
    if sections is not None and scaling is not None:
        raise ConfigError("config.json: rope_parameters and rope_scaling are the same setting; give one")
    thetas = (
        reader.nullable("rope_theta", None, float),
        reader.nullable("rope_local_base_freq", None, float),
    )
    given: tuple[ConfigReader | None, ConfigReader | None] = (scaling, None)
    if sections is not None:
        given = (sections.section("full_attention"), sections.section("sliding_attention"))
    max_positions = reader.optional("max_position_embeddings", 131_072, int)
    global_rope, local_rope = (
        read_rope_section(reader, section, outer=theta, default=default, head_dim=head_dim, max_positions=max_positions)
        for section, theta, default in zip(given, thetas, (GLOBAL_THETA, LOCAL_THETA), strict=True)
    )
    return global_rope, local_rope
