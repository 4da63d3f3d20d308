"""EAGLE: a small decoder of its own checkpoint that reads the target's states, and guesses tokens as MTP layers do.

EAGLE (arXiv 2401.15077) reads what the target's head reads; EAGLE-3 (2503.01840) the streams before three of its layers, and
has a head of its own, which may know fewer tokens. Embeddings are the target's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxengine.device.layers.block import Block
from jaxengine.device.layers.cache import Cache
from jaxengine.device.layers.context import ModelContext
from jaxengine.device.layers.embedding import Embedding
from jaxengine.device.layers.keeps import Keeps
from jaxengine.device.layers.linear import Linear
from jaxengine.device.layers.self_attention import SelfAttention
from jaxengine.device.layers.stack import Layer
from jaxengine.device.layers.step import Shared, Step
from jaxengine.device.models.config.decoder_config import FOR_THE_START, DecoderConfig
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.config.rotary_config import RotaryDecoderConfig
from jaxengine.device.models.families.llama import LlamaForCausalLM
from jaxengine.device.models.shared.decoder import Decoder
from jaxengine.device.weights.rules import Array, Ignore, KvHeads, Rule
from jaxengine.errors import ConfigError
from pallas_kernels import AdapterRows

LAYERS = "[model.]layers.*."


@dataclass(frozen=True, kw_only=True)
class EagleConfig(RotaryDecoderConfig):
    """`taps` are the target's layers whose input is read, `states_size` is that of a state of theirs.

    `draft_vocab_size` counts the tokens that the head knows. With `norms_residual` the stream begins with the normalised state.
    `join_bias` is of the projection of token and state.
    """

    taps: tuple[int, ...] = ()
    states_size: int
    draft_vocab_size: int
    norms_residual: bool = False
    join_bias: bool = False
    knows_all: bool = field(default=True, metadata=FOR_THE_START)


class Eagle(LlamaForCausalLM):
    """A `Draft` of Llama's layers, the first without the norm before its attention, and none behind the last."""

    SHARED: ClassVar[tuple[str, ...]] = ("embed", "head")
    IGNORED: ClassVar[Mapping[str, Ignored]] = {
        **LlamaForCausalLM.IGNORED,
        "draft_vocab_size": Ignored("the head is the target's"),
    }
    ahead: bool = True
    config: EagleConfig

    def __init__(self, config: EagleConfig, context: ModelContext) -> None:
        Decoder.__init__(self, config, context)
        width = config.hidden_size
        self.join = Linear(2 * width, width, axes=("embed", "inputs"), bias=config.join_bias, context=context)
        layers = [self.block(layer) for layer in range(config.num_layers)]
        assert isinstance(layers[0], Block)
        layers[0].attention_norm = _Same()
        self.layers = nnx.List(layers)

    @property
    def taps(self) -> tuple[int, ...]:
        """As the interface says."""
        return self.config.taps

    @classmethod
    def read_draft(cls, reader: ConfigReader, target: DecoderConfig) -> EagleConfig:
        """The draft's configuration, for this target.

        Raises:
            ConfigError: the two do not fit.
        """
        own = cls.read_config(reader)
        check_fits(own, target)
        return EagleConfig(
            **{**_values(own), "tie_word_embeddings": target.tie_word_embeddings},
            states_size=target.hidden_size,
            draft_vocab_size=target.vocab_size,
            join_bias=reader.optional("bias", False, bool),
        )

    @classmethod
    def rules(cls, config: Any) -> tuple[Rule | Ignore, ...]:
        """Which tensors of the draft's checkpoint make its parameters."""
        return (
            *_of_layers(cls.WEIGHTS),
            Rule("join.weight", "[model.]fc.weight"),
            Rule("join.bias", "[model.]fc.bias"),
            Ignore("[model.]embed_tokens.weight", "embeddings are the target's"),
            Ignore("lm_head.weight", "the head is the target's"),
        )

    def take_in(self, states: jax.Array) -> jax.Array:
        """The states as they are."""
        return states

    def begin(self, tokens: jax.Array, states: jax.Array | None, positions: jax.Array) -> tuple[jax.Array, Shared]:
        """As the interface says."""
        assert states is not None
        embedded, shared = self.embed_tokens(tokens, positions)
        return self.join(jnp.concatenate([embedded, states], axis=-1), None), shared

    def end(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The stream is what the target's head reads, and the next state."""
        return x, x


class Eagle3(LlamaForCausalLM):
    """A `Draft`, whose first layer attends to token and state side by side."""

    SHARED: ClassVar[tuple[str, ...]] = ("embed",)
    IGNORED: ClassVar[Mapping[str, Ignored]] = {
        **LlamaForCausalLM.IGNORED,
        "bias": Ignored("attention_bias says it", allowed=(False,)),
        "target_hidden_size": Ignored("the target says it"),
        "modal_type": Ignored("a note about the file, not about the model"),
    }
    ahead: bool = True
    config: EagleConfig

    def __init__(self, config: EagleConfig, context: ModelContext) -> None:
        nnx.Module.__init__(self)
        self.config, self.context, self.pooler = config, context, None
        self.embed = Embedding(config.vocab_size, config.hidden_size, context=context)
        self.head = Embedding(config.draft_vocab_size, config.hidden_size, context=context)
        width, inputs = config.hidden_size, max(1, len(config.taps)) * config.states_size
        self.fuse = Linear(inputs, width, axes=("embed", "inputs"), bias=False, context=context)
        self.layers = nnx.List([self.block(layer) for layer in range(config.num_layers)])
        self.norm = self.make_norm()
        known = context.parameter((config.draft_vocab_size,), ("whole_vocab",), dtype=jnp.int32)
        self.known = None if config.knows_all else known

    @property
    def taps(self) -> tuple[int, ...]:
        """As the interface says."""
        return self.config.taps

    def block(self, layer: int) -> Layer:
        """The first has a norm of the state beside the one of the token."""
        if layer:
            return super().block(layer)
        shape = replace(self.attention_shape(0), joined=True)
        mlp, attention = self.feed_forward(0), SelfAttention(shape, context=self.context)
        norms = {name: self.make_norm() for name in ("attention_norm", "state_norm", "mlp_norm")}
        return JoinedBlock(attention, mlp, norms_residual=self.config.norms_residual, **norms)

    @classmethod
    def read_draft(cls, reader: ConfigReader, target: DecoderConfig) -> EagleConfig:
        """As `Eagle.read_draft`. The streams are those before layer 2, the middle and the third from the end by default."""
        own = cls.read_config(reader)
        check_fits(own, target)
        section = reader.section("eagle_config")
        named = None if section is None else section.raw("eagle_aux_hidden_state_layer_ids")
        if section is not None and not section.optional("use_aux_hidden_state", True, bool):
            raise ConfigError("config.json: eagle_config.use_aux_hidden_state is not built but as true")
        named = reader.raw("eagle_aux_hidden_state_layer_ids", named)
        taps = named or (2, target.num_layers // 2, target.num_layers - 3)
        known = reader.nullable_size("draft_vocab_size", None) or target.vocab_size
        return EagleConfig(
            **_values(own),
            taps=read_taps(taps, target),
            states_size=target.hidden_size,
            draft_vocab_size=known,
            norms_residual=reader.optional("norm_before_residual", False, bool),
            knows_all=known == target.vocab_size,
        )

    @classmethod
    def rules(cls, config: Any) -> tuple[Rule | Ignore, ...]:
        """Which tensors of the draft's checkpoint make its parameters; SpecForge and vLLM name the first layer differently."""
        rows = (*cls.WEIGHTS, Rule("layers.*.state_norm.scale", f"{LAYERS}hidden_norm.weight"))
        return (
            *_of_layers(rows),
            *(
                replace(row, target=row.target.replace("*", "0"), source=f"midlayer.{row.source.removeprefix(LAYERS)}")
                for row in _of_layers(rows)
            ),
            Rule("fuse.weight", "[model.]fc.weight"),
            Rule("norm.scale", "[model.]norm.weight"),
            Rule("head.table", "lm_head.weight"),
            Rule("known", "d2t", _known, absent_if="knows_all"),
            Ignore("t2d", "the same as d2t, told otherwise"),
            Ignore("[model.]embed_tokens.weight", "embeddings are the target's"),
        )

    def take_in(self, states: jax.Array) -> jax.Array:
        """The streams before all taps, `[N, T * E]` -> `[N, Ed]`."""
        return self.fuse(states, None)

    def begin(self, tokens: jax.Array, states: jax.Array | None, positions: jax.Array) -> tuple[jax.Array, Shared]:
        """Tokens and states side by side, `[N, 2 * Ed]`."""
        assert states is not None
        embedded, shared = self.embed_tokens(tokens, positions)
        return jnp.concatenate([embedded, states], axis=-1), shared

    def end(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """As the interface says."""
        return self.norm(x), x

    def logits(self, hidden: jax.Array, adapters: AdapterRows | None = None) -> jax.Array:
        """As the interface says."""
        scores = super().logits(hidden, adapters)
        return scores if self.known is None else spread(scores, self.known[...], self.config.vocab_size)


class JoinedBlock(nnx.Module):
    """Attention to token and state side by side, `[N, 2 * Ed]`, added to the state; then a feed-forward as in other blocks."""

    def __init__(self, attention: SelfAttention, mlp: Any, *, norms_residual: bool, **norms: Any) -> None:
        """`norms_residual`: the residual stream begins with the normalised state."""
        self.attention, self.mlp, self.norms_residual = attention, mlp, norms_residual
        self.attention_norm, self.state_norm, self.mlp_norm = (
            norms[name] for name in ("attention_norm", "state_norm", "mlp_norm")
        )

    @property
    def keeps(self) -> Keeps:
        """What attention keeps."""
        return self.attention.keeps

    def __call__(self, x: jax.Array, cache: Cache, step: Step) -> tuple[jax.Array, Cache]:
        embedded, state = jnp.split(x, 2, axis=-1)
        normed = self.state_norm(state)
        joined = jnp.concatenate([self.attention_norm(embedded), normed], axis=-1)
        mixed, cache = self.attention(joined, cache, step)
        x = (normed if self.norms_residual else state) + mixed
        return x + self.mlp(self.mlp_norm(x), step), cache


class _Same(nnx.Module):
    """No norm."""

    def __call__(self, x: jax.Array) -> jax.Array:
        return x


def spread(scores: jax.Array, known: jax.Array, vocab_size: int) -> jax.Array:
    """Scores `[R, Vd]` of the tokens `known [Vd]` -> `[R, V]`, minus infinity for all others."""
    everything = jnp.full((scores.shape[0], vocab_size), -jnp.inf, scores.dtype)
    return everything.at[:, known].set(scores)


def check_fits(own: DecoderConfig, target: DecoderConfig) -> None:
    """Refuse a draft of another target.

    Raises:
        ConfigError: naming both sizes.
    """
    for key in ("vocab_size", "hidden_size"):
        ours, theirs = getattr(own, key), getattr(target, key)
        if ours != theirs:
            raise ConfigError(
                f"the draft's config.json says {key}={ours}, and the model's is {theirs}: it drafts for another model"
            )


def read_taps(numbers: Sequence[int], target: DecoderConfig) -> tuple[int, ...]:
    """Layers whose input is read; that of one behind the last is the last one's output.

    Raises:
        ConfigError: the target has no such layers.
    """
    if not all(isinstance(number, int) and 0 <= number <= target.num_layers for number in numbers):
        raise ConfigError(f"the draft reads layers {tuple(numbers)}, and the model has {target.num_layers}")
    return tuple(numbers)


def _values(config: RotaryDecoderConfig) -> dict[str, Any]:
    return {each.name: getattr(config, each.name) for each in fields(config)}


def _of_layers(rows: Sequence[Rule | Ignore]) -> tuple[Rule, ...]:
    return tuple(row for row in rows if isinstance(row, Rule) and row.target.startswith("layers.*."))


def _known(tensor: Array, config: KvHeads, shape: tuple[int, ...]) -> Array:
    """What is stored is how much further a token's number is in the target's vocabulary."""
    return (tensor + np.arange(len(tensor))).astype(np.int32)
