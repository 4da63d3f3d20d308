"""Gemma 4, its text model: heads of two sizes, caches that layers share, embeddings of each layer, experts beside networks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxengine.device.layers.context import ModelContext
from jaxengine.device.layers.embedding import Embedding
from jaxengine.device.layers.linear import Linear
from jaxengine.device.layers.norm import RMSNorm
from jaxengine.device.layers.step import Shared
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.config.language_part import language_rules, language_section, tower_section
from jaxengine.device.models.families.gemma4.config import Gemma4Config, read_gemma4
from jaxengine.device.models.families.gemma4.layer import Gemma4Layer, Gemma4LayerShape, Gemma4Shared
from jaxengine.device.models.interface import MediaTraits
from jaxengine.device.models.shared.decoder import Decoder
from jaxengine.device.models.shared.gemma import scale_embeddings
from jaxengine.device.models.shared.seeing import Seeing, Seen, of_tower
from jaxengine.device.models.towers.gemma4 import Gemma4Tower
from jaxengine.device.weights.rules import Array, Ignore, KvHeads, Rule, part
from jaxengine.errors import ConfigError
from pallas_kernels import QUANTISED_CACHES, AdapterRows

GLOBAL, LOCAL = 0, 1
"""Which of the step's angles are whose."""


def repeat_heads(tensor: Array, config: KvHeads, shape: tuple[int, ...]) -> Array:
    """As `repeat_kv_heads`, for heads whose size follows from how many channels a layer's have together."""
    assert isinstance(config, Gemma4Config)
    repeats = shape[0] // tensor.shape[0]
    if repeats <= 1:
        return tensor
    shapes = ((config.num_kv_heads, config.head_dim), (config.num_global_kv_heads, config.global_head_dim))
    count = next(count for count, head_dim in shapes if count * head_dim == tensor.shape[0])
    heads = tensor.reshape(count, -1, *tensor.shape[1:])
    return np.repeat(heads, repeats, axis=0).reshape(-1, *tensor.shape[1:])


LAYER, OURS = "[model.]layers.*", "layers.*"
NORMS = {
    "attention_norm": "input_layernorm",
    "attention_output_norm": "post_attention_layernorm",
    "output_norm": "post_feedforward_layernorm",
    "feed_forward.mlp_norm": "pre_feedforward_layernorm",
    "feed_forward.mlp_output_norm": "post_feedforward_layernorm_1",
    "feed_forward.experts_norm": "pre_feedforward_layernorm_2",
    "feed_forward.experts_output_norm": "post_feedforward_layernorm_2",
    "attention.q_norm": "self_attn.q_norm",
    "attention.k_norm": "self_attn.k_norm",
    "beside.norm": "post_per_layer_input_norm",
}
KEPT_BY_ANOTHER = "keys and values are another layer's"


class Gemma4ForCausalLM(Decoder):
    """A `Model`."""

    WEIGHTS: ClassVar[Sequence[Rule | Ignore]] = (
        Rule("embed.table", "[model.]embed_tokens.weight"),
        Rule("embed_beside.table", "[model.]embed_tokens_per_layer.weight"),
        Rule("project_beside.weight", "[model.]per_layer_model_projection.weight"),
        Rule("beside_norm.scale", "[model.]per_layer_projection_norm.weight"),
        *(Rule(f"{OURS}.{ours}.scale", f"{LAYER}.{theirs}.weight") for ours, theirs in NORMS.items()),
        *(
            Rule(
                f"{OURS}.attention.{x}.{kind}",
                f"{LAYER}.self_attn.{x}_proj.{kind}",
                repeat_heads if x in "kv" else None,
            )
            for x in "qkvo"
            for kind in ("weight", "bias")
        ),
        *(Rule(f"{OURS}.feed_forward.mlp.{x}.weight", f"{LAYER}.mlp.{x}_proj.weight") for x in ("gate", "up", "down")),
        Rule(f"{OURS}.feed_forward.router_norm.scale", f"{LAYER}.router.scale"),
        Rule(f"{OURS}.feed_forward.experts.router", f"{LAYER}.router.proj.weight"),
        Rule(f"{OURS}.feed_forward.experts.scales", f"{LAYER}.router.per_expert_scale"),
        Rule(f"{OURS}.feed_forward.experts.gate.weight", f"{LAYER}.experts.gate_up_proj", part(0, 2), each=True),
        Rule(f"{OURS}.feed_forward.experts.up.weight", f"{LAYER}.experts.gate_up_proj", part(1, 2), each=True),
        Rule(f"{OURS}.feed_forward.experts.down.weight", f"{LAYER}.experts.down_proj", each=True),
        Rule(f"{OURS}.beside.gate.weight", f"{LAYER}.per_layer_input_gate.weight"),
        Rule(f"{OURS}.beside.project.weight", f"{LAYER}.per_layer_projection.weight"),
        Rule(f"{OURS}.scalar", f"{LAYER}.layer_scalar"),
        Rule("norm.scale", "[model.]norm.weight"),
        Rule("head.table", "lm_head.weight", absent_if="tie_word_embeddings"),
        *(
            Ignore(f"{LAYER}.self_attn.{name}.**", KEPT_BY_ANOTHER, layers="reader_layers")
            for name in ("k_proj", "v_proj", "k_norm", "v_norm")
        ),
    )
    IGNORED: ClassVar[Mapping[str, Ignored]] = {}
    config: Gemma4Config

    def __init__(self, config: Gemma4Config, context: ModelContext) -> None:
        if config.num_readers and context.cache_dtype in QUANTISED_CACHES:
            raise ConfigError(
                f"a cache in {context.cache_dtype} is not built for models whose layers share caches; use "
                "kv_cache_dtype='bfloat16'"
            )
        super().__init__(config, context)
        if config.beside:
            channels = config.num_layers * config.beside
            self.embed_beside = Embedding(config.beside_vocab_size, channels, context=context)
            self.project_beside = Linear(
                config.hidden_size, channels, axes=("word_embed", "embed"), bias=False, context=context
            )
            self.beside_norm = RMSNorm(config.beside, epsilon=config.rms_norm_eps, axis="word_embed", context=context)
        self.layers = nnx.List(
            [Gemma4Layer(self._layer_shape(layer), context=context) for layer in range(config.num_layers)]
        )
        self.norm = RMSNorm(config.hidden_size, epsilon=config.rms_norm_eps, context=context)

    @classmethod
    def read_config(cls, reader: ConfigReader) -> Gemma4Config:
        return read_gemma4(reader)

    def _layer_shape(self, layer: int) -> Gemma4LayerShape:
        config, window = self.config, self.config.windows[layer]
        heads, head_dim = config.kv_shape(layer)
        reads = config.source_of(layer)
        return Gemma4LayerShape(
            width=config.hidden_size,
            mlp_size=config.mlp_size * (2 if config.wide and reads is not None else 1),
            activation=config.activation,
            epsilon=config.rms_norm_eps,
            num_heads=config.num_heads,
            num_kv_heads=heads,
            head_dim=head_dim,
            bias=config.attention_bias,
            rope=GLOBAL if window is None else LOCAL,
            window=window,
            keys_as_values=config.keys_as_values and window is None,
            reads=reads,
            beside=config.beside,
            experts=config.experts,
        )

    def embed_tokens(
        self, tokens: jax.Array, positions: jax.Array, adapters: AdapterRows | None = None
    ) -> tuple[jax.Array, Shared]:
        config = self.config
        x = scale_embeddings(self.embed(tokens, adapters), hidden_size=config.hidden_size, dtype=self.context.dtype)
        angles = config.global_rope.angles(positions), config.local_rope.angles(positions)
        return x, Gemma4Shared(angles, self._beside(x, tokens) if config.beside else None)

    def _beside(self, x: jax.Array, tokens: jax.Array) -> jax.Array:
        """What all layers are given of each token, `[N, layers * P]`: of the token itself and of its embedding."""
        config = self.config
        own = scale_embeddings(self.embed_beside(tokens), hidden_size=config.beside, dtype=self.context.dtype)
        seen = (self.project_beside(x, None) * config.hidden_size**-0.5).reshape(-1, config.num_layers, config.beside)
        return (self.beside_norm(seen).reshape(own.shape) + own) * 2**-0.5

    def final_norm(self, x: jax.Array) -> jax.Array:
        return self.norm(x)

    def logits(self, hidden: jax.Array, adapters: AdapterRows | None = None) -> jax.Array:
        logits, cap = super().logits(hidden, adapters), self.config.logit_cap
        return logits if cap is None else cap * jnp.tanh(logits / cap)


class Gemma4ForConditionalGeneration(Seeing, Gemma4ForCausalLM):
    """Those that also see pictures, whose tokens see each other in some sizes. What hears is left unread."""

    TOWER = Gemma4Tower
    WEIGHTS = (
        *language_rules(Gemma4ForCausalLM.WEIGHTS, ("audio_tower", "embed_audio")),
        *map(of_tower, Gemma4Tower.WEIGHTS),
    )
    IGNORED: ClassVar[Mapping[str, Ignored]] = {
        **dict.fromkeys(
            ("vision_soft_tokens_per_image", "image_token_id", "video_token_id", "boi_token_id", "eoi_token_id"),
            Ignored("read where prompts are taken in"),
        ),
        **dict.fromkeys(
            ("audio_config", "audio_token_id", "boa_token_id", "eoa_token_id", "eoa_token_index"),
            Ignored("sounds are refused"),
        ),
    }

    @classmethod
    def read_config(cls, reader: ConfigReader) -> Gemma4Config:
        text = read_gemma4(language_section(reader, {}))
        if reader.raw("vision_config") is None:
            return text
        section = tower_section(reader, Gemma4Tower.IGNORED)
        return replace(text, tower=Gemma4Tower.read_config(section, out_size=text.hidden_size))

    @property
    def media(self) -> MediaTraits | None:
        traits = super().media
        return None if traits is None else replace(traits, sight=self.config.sight)

    def embed_prompt(
        self, tokens: jax.Array, positions: jax.Array, seen: Seen, adapters: AdapterRows | None = None
    ) -> tuple[jax.Array, Shared]:
        x, shared = super().embed_prompt(tokens, positions, seen, adapters)
        if not self.config.beside:
            return x, shared
        padded = jnp.where(seen.here, jnp.asarray(self.config.padding, tokens.dtype), tokens)
        return x, Gemma4Shared(shared.angles, self._beside(x, padded))
