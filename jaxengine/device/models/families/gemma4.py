"""Gemma 4, its text model: heads of two sizes, caches that layers share, embeddings of each layer, experts beside networks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh

from jaxengine.device.layers.activation import ACTIVATIONS
from jaxengine.device.layers.context import ModelContext
from jaxengine.device.layers.embedding import Embedding
from jaxengine.device.layers.experts import ExpertsShape
from jaxengine.device.layers.linear import Linear
from jaxengine.device.layers.norm import RMSNorm
from jaxengine.device.layers.rotary import Rope
from jaxengine.device.layers.routing import Routing
from jaxengine.device.layers.sharding import check_divisible, check_experts, shards
from jaxengine.device.layers.step import Angles
from jaxengine.device.models.config.decoder_config import DecoderConfig, read_stored_dtype, read_token_ids
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.config.language_part import language_rules, language_section
from jaxengine.device.models.config.rope import read_rope_section
from jaxengine.device.models.config.rotary_config import read_windows_by_type
from jaxengine.device.models.families.gemma import scale_embeddings
from jaxengine.device.models.families.mixtral import check_chosen
from jaxengine.device.models.interface import Paged
from jaxengine.device.models.shared.decoder import Decoder
from jaxengine.device.models.shared.gemma4_layer import Gemma4Layer, Gemma4LayerShape
from jaxengine.device.weights.rules import Array, Ignore, KvHeads, Rule, part
from jaxengine.errors import ConfigError
from pallas_kernels import QUANTISED_CACHES

GLOBAL, LOCAL = 0, 1
"""Which of the step's angles are whose."""
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
    of which there are `beside_vocab_size`; 0 is none. `logit_cap` bounds logits smoothly.
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

    @property
    def reader_layers(self) -> tuple[int, ...]:
        """The layers that keep nothing."""
        return tuple(range(self.num_layers - self.num_readers, self.num_layers))

    def kv_shape(self, layer: int) -> tuple[int, int]:
        """How many KV heads a layer has, without repeats, and their size."""
        if self.windows[layer] is None:
            return self.num_global_kv_heads, self.global_head_dim
        return self.num_kv_heads, self.head_dim

    def check_mesh(self, mesh: Mesh | None) -> None:
        super().check_mesh(mesh)
        devices = shards("heads", mesh)
        check_divisible(devices, heads=self.num_heads, kv_heads=self.num_global_kv_heads, mlp=self.mlp_size)
        if self.experts is not None:
            check_experts(mesh, count=self.experts.count, inner=self.experts.inner)
        shapes = {self.kv_shape(layer) for layer in range(self.num_layers)}
        sizes = {heads * head_dim for heads, head_dim in shapes}
        if len(sizes) < len(shapes) and devices > min(heads for heads, _ in shapes):
            raise ConfigError(
                f"tensor_parallel_size={devices}: KV heads of this model cannot be repeated, as those of all its layers "
                f"together have {sizes.pop()} channels; use at most {min(heads for heads, _ in shapes)}"
            )


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
    """A `CausalLM`. What layers are given beside the residual stream lies behind it (`Gemma4Layer`)."""

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
    IGNORED: ClassVar[Mapping[str, Ignored]] = {
        "use_bidirectional_attention": Ignored("attention to later tokens is for pictures", allowed=(None, "vision")),
    }
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
        return _read(reader)

    @property
    def cache(self) -> tuple[Paged, ...]:
        """Layers of one kind share a declaration, and one that keeps nothing reads the last of its kind that does."""
        config = self.config
        kinds: dict[int | None, list[int]] = {}
        for layer, window in enumerate(config.windows):
            kinds.setdefault(window, []).append(layer)
        declared = []
        for window, layers in kinds.items():
            keeping = tuple(layer for layer in layers if layer not in config.reader_layers)
            heads, head_dim = config.kv_shape(layers[0])
            declared.append(
                Paged(
                    keeping,
                    self.context.stored_kv_heads(heads),
                    head_dim,
                    keep=window,
                    readers=tuple((layer, keeping[-1]) for layer in layers if layer in config.reader_layers),
                )
            )
        return tuple(declared)

    def _layer_shape(self, layer: int) -> Gemma4LayerShape:
        config, window = self.config, self.config.windows[layer]
        heads, head_dim = config.kv_shape(layer)
        reads = layer in config.reader_layers
        return Gemma4LayerShape(
            width=config.hidden_size,
            mlp_size=config.mlp_size * (2 if reads and config.wide else 1),
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

    def enter(self, tokens: jax.Array, positions: jax.Array) -> tuple[jax.Array, tuple[Angles, ...]]:
        config = self.config
        x = scale_embeddings(self.embed(tokens), hidden_size=config.hidden_size, dtype=self.context.dtype)
        angles = config.global_rope.angles(positions), config.local_rope.angles(positions)
        return (jnp.concatenate([x, self._beside(x, tokens)], axis=1) if config.beside else x), angles

    def _beside(self, x: jax.Array, tokens: jax.Array) -> jax.Array:
        """What all layers are given of each token, `[N, layers * P]`: of the token itself and of its embedding."""
        config = self.config
        own = scale_embeddings(self.embed_beside(tokens), hidden_size=config.beside, dtype=self.context.dtype)
        seen = (self.project_beside(x, None) * config.hidden_size**-0.5).reshape(-1, config.num_layers, config.beside)
        return (self.beside_norm(seen).reshape(own.shape) + own) * 2**-0.5

    def leave(self, x: jax.Array) -> jax.Array:
        return self.norm(x[:, : self.config.hidden_size])

    def logits(self, hidden: jax.Array) -> jax.Array:
        logits, cap = super().logits(hidden), self.config.logit_cap
        return logits if cap is None else cap * jnp.tanh(logits / cap)


class Gemma4ForConditionalGeneration(Gemma4ForCausalLM):
    """The language model of those that also see pictures and hear, of which only text is asked."""

    WEIGHTS = language_rules(Gemma4ForCausalLM.WEIGHTS, ("vision_tower", "embed_vision", "audio_tower", "embed_audio"))
    IGNORED: ClassVar[Mapping[str, Ignored]] = dict.fromkeys(
        (
            *("vision_config", "audio_config", "vision_soft_tokens_per_image", "image_token_id", "video_token_id"),
            *("boi_token_id", "eoi_token_id", "audio_token_id", "boa_token_id", "eoa_token_id", "eoa_token_index"),
        ),
        Ignored("pictures and sounds are refused"),
    )

    @classmethod
    def read_config(cls, reader: ConfigReader) -> Gemma4Config:
        return _read(language_section(reader, Gemma4ForCausalLM.IGNORED))


def _read(reader: ConfigReader) -> Gemma4Config:
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
        **read_token_ids(reader, bos=2, eos=1),
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
        experts=_read_experts(reader, hidden_size, activation),
    )


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
