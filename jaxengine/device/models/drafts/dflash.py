"""DFlash (arXiv 2602.06036): all drafts of a sequence are guessed at once, by a small decoder that looks at the target's states.

Its attention finds keys and values of the tokens so far that are made of the target's states, not of a stream of its own. The
sampled token and a mask for each guess are a block whose tokens see each other, those behind them too; at each mask the
target's head reads what the guess is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from jaxengine.device.layers.attention import KV_HEADS, write
from jaxengine.device.layers.block import Block
from jaxengine.device.layers.cache import Cache
from jaxengine.device.layers.context import ModelContext
from jaxengine.device.layers.linear import Linear, project
from jaxengine.device.layers.self_attention import SelfAttention
from jaxengine.device.layers.stack import run_layers
from jaxengine.device.layers.step import Shared, Step
from jaxengine.device.models.config.decoder_config import DecoderConfig
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.config.rotary_config import RotaryDecoderConfig, read_layer_types, read_shared
from jaxengine.device.models.drafts.eagle import check_fits, read_taps
from jaxengine.device.models.drafts.interface import DraftRows
from jaxengine.device.models.families.qwen3 import Qwen3ForCausalLM
from jaxengine.device.models.shared.decoder import Decoder
from jaxengine.device.weights.rules import Ignore, Rule
from jaxengine.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class DFlashConfig(RotaryDecoderConfig):
    """`taps` are the target's layers whose input is read, `states_size` is that of a state, `mask` the token of a guess to be.

    In `causal` layers a token of the block does not see those behind it.
    """

    taps: tuple[int, ...]
    states_size: int
    mask: int
    causal: tuple[bool, ...]


class DFlash(Qwen3ForCausalLM):
    """A `Draft` and `BlockDraft` of Qwen3's layers."""

    SHARED: ClassVar[tuple[str, ...]] = ("embed", "head")
    IGNORED: ClassVar[Mapping[str, Ignored]] = {
        "auto_map": Ignored("code of the repository, which is never run"),
        "block_size": Ignored("num_speculative_tokens says how many are guessed"),
        "num_target_layers": Ignored("the target says it"),
        "max_window_layers": Ignored("layer_types say which layers see a window"),
        "use_sliding_window": Ignored("layer_types say which layers see a window"),
        "tie_word_embeddings": Ignored("embedding and head are the target's"),
    }
    ahead: bool = True
    config: DFlashConfig

    def __init__(self, config: DFlashConfig, context: ModelContext) -> None:
        Decoder.__init__(self, config, context)
        inputs = len(config.taps) * config.states_size
        self.fuse = Linear(inputs, config.hidden_size, axes=("embed", "inputs"), bias=False, context=context)
        self.state_norm = self.make_norm()
        self.layers = nnx.List([self.block(layer) for layer in range(config.num_layers)])
        self.norm = self.make_norm()

    @property
    def taps(self) -> tuple[int, ...]:
        """As the interface says."""
        return self.config.taps

    def block(self, layer: int) -> Block:
        attention = StateAttention(self.attention_shape(layer), context=self.context)
        attention.causal = self.config.causal[layer]
        return Block(attention, self.feed_forward(layer), norm=self.make_norm)

    @classmethod
    def read_draft(cls, reader: ConfigReader, target: DecoderConfig) -> DFlashConfig:
        """The draft's configuration, for this target.

        Raises:
            ConfigError: the two do not fit, or there is no token for masks.
        """
        own = _read(reader)
        check_fits(own, target)
        section = reader.section("dflash_config")
        if section is None:
            raise ConfigError(
                "config.json has no 'dflash_config', which names the target's layers and the mask's token"
            )
        layers, mask = section.raw("target_layer_ids"), section.required("mask_token_id", int)
        if not isinstance(layers, list) or not layers:
            raise ConfigError(
                f"config.json: dflash_config.target_layer_ids must list the target's layers, got {layers!r}"
            )
        causal = reader.nullable("is_causal", section.nullable("causal", None, bool), bool)
        return DFlashConfig(
            **{**_values(own), "tie_word_embeddings": target.tie_word_embeddings},
            # they are numbers of layers whose output is read
            taps=read_taps([layer + 1 if isinstance(layer, int) else layer for layer in layers], target),
            states_size=target.hidden_size,
            mask=mask,
            causal=tuple(window is not None if causal is None else causal for window in own.windows),
        )

    @classmethod
    def rules(cls, config: Any) -> tuple[Rule | Ignore, ...]:
        """Which tensors of the draft's checkpoint make its parameters."""
        return (
            *(row for row in cls.WEIGHTS if not isinstance(row, Rule) or not row.target.startswith(cls.SHARED)),
            Rule("fuse.weight", "[model.]fc.weight"),
            Rule("state_norm.scale", "[model.]hidden_norm.weight"),
            Ignore("[model.]embed_tokens.weight", "embeddings are the target's"),
            Ignore("lm_head.weight", "the head is the target's"),
        )

    def take_in(self, states: jax.Array) -> jax.Array:
        """The streams before all taps, `[N, T * E]` -> `[N, Ed]`."""
        return self.state_norm(self.fuse(states, None))

    def draft(self, given: DraftRows, cache: Cache, count: int) -> tuple[jax.Array, Cache]:
        """As the interface says: keys and values of the step's tokens are written, then the blocks are gone through."""
        assert given.states is not None
        shared = self._angles(given.step.positions)
        for number, layer in enumerate(self.layers):
            assert isinstance(layer, Block)
            assert isinstance(layer.attention, StateAttention)
            cache = layer.attention.keep(given.states, cache, given.step.sharing(shared).for_layer(number))
        size = 1 + count
        masks = jnp.full((given.sampled.shape[0], count), self.config.mask, jnp.int32)
        tokens = jnp.concatenate([given.sampled[:, None], masks], axis=1).reshape(-1)
        step = given.rows(given.positions, size)
        x, cache = run_layers(self.layers, self.embed(tokens), cache, step.sharing(self._angles(step.positions)))
        guesses = x.reshape(-1, size, x.shape[-1])[:, 1:].reshape(-1, x.shape[-1])
        return self.logits(self.norm(guesses)).reshape(-1, count, self.config.vocab_size), cache

    def _angles(self, positions: jax.Array) -> Shared:
        return Shared((self.config.rope.angles(positions),))


class StateAttention(SelfAttention):
    """Attention to keys and values of states, and within a block of tokens to all of it, unless it is `causal`."""

    causal: bool = False

    def keep(self, states: jax.Array, cache: Cache, step: Step) -> Cache:
        """The cache with keys and values made of `states [N, Ed]` in its pages."""
        keys, values = project(states, step, self.k, self.v)
        keys = self._heads(keys)
        keys = keys if self.k_norm is None else self.k_norm(keys)
        keys = self._rotated(keys, KV_HEADS, step)
        layout, values = self.context.layout, self._values(values)
        pages = write(
            layout.constrain(keys, KV_HEADS),
            layout.constrain(values, KV_HEADS),
            cache.pages_of(step),
            step,
            paged=self.paged,
            scales=self._scales(),
            context=self.context,
        )
        return cache.with_pages(step.pool, pages)

    def _attended(
        self, queries: jax.Array, keys: jax.Array, values: jax.Array, cache: Cache, step: Step
    ) -> tuple[jax.Array, Cache]:
        return super()._attended(queries, keys, values, cache, step if self.causal else seeing_all(step))


def seeing_all(step: Step) -> Step:
    """A step of which each token sees all of its row: as a row of its own, that stands where its row ends.

    Pages are written before any row attends, and where keys and values go is said of each place by itself.
    """
    places = step.positions.shape[0]
    row = step.row_of_place
    ends = step.starts + step.offsets[1:] - step.offsets[:-1] - 1
    return replace(
        step,
        offsets=jnp.arange(places + 1, dtype=jnp.int32),
        starts=ends[row],
        page_table=step.page_table[row],
        row_slots=None,
    )


def _read(reader: ConfigReader) -> RotaryDecoderConfig:
    """As Qwen3's, but windows are by `layer_types` alone."""
    shared = read_shared(reader, kv_heads=None, head_dim=128)
    count = shared["num_layers"]
    window = reader.nullable_size("sliding_window", None)
    types = read_layer_types(reader, count) or ("full_attention",) * count
    if window is None and "sliding_attention" in types:
        raise ConfigError("config.json: some layers see a window, and there is no sliding_window; set it")
    bias = reader.optional("attention_bias", False, bool)
    return RotaryDecoderConfig(
        **shared,
        windows=tuple(window if kind == "sliding_attention" else None for kind in types),
        qkv_bias=bias,
        output_bias=bias,
        qk_norm=True,
    )


def _values(config: RotaryDecoderConfig) -> dict[str, Any]:
    return {each.name: getattr(config, each.name) for each in fields(config)}
