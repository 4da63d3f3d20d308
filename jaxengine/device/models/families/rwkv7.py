"""RWKV-7: states that learn by a generalised delta rule, and layers that see the token before each one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from jaxengine.device.layers.cache import Cache
from jaxengine.device.layers.context import ModelContext
from jaxengine.device.layers.keeps import Keeps, PerSlot
from jaxengine.device.layers.mlp import MLP
from jaxengine.device.layers.norm import LayerNorm
from jaxengine.device.layers.step import Shared, Step
from jaxengine.device.layers.time_mix import TimeMix, TimeMixShape
from jaxengine.device.layers.token_shift import TokenShift
from jaxengine.device.models.config.decoder_config import DecoderConfig, read_stored_dtype
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.shared.decoder import Decoder
from jaxengine.device.models.shared.states_alone import LONGEST
from jaxengine.device.weights.rules import Rule, flat
from jaxengine.errors import ConfigError
from pallas_kernels import AdapterRows

NORMS = {"first_norm": "pre_norm", "mixer_norm": "attn_norm", "mlp_norm": "ffn_norm"}
SHIFTS = {"q": "r", "decay": "w", "k": "k", "v": "v", "rate": "a", "gate": "g"}
LOW_RANKS = {"decay": "w", "rate": "a", "gate": "g", "value_mix": "v"}
VECTORS = {"removed_scale": "k_k", "rate_scale": "k_a", "bonus": "r_k", "norm_scale": "g_norm.weight"}


@dataclass(frozen=True, kw_only=True)
class Rwkv7Config(DecoderConfig):
    """With `norm_first` embeddings go through a norm of their own."""

    time_mix: TimeMixShape
    norm_epsilon: float
    norm_bias: bool
    norm_first: bool


class Rwkv7Layer(nnx.Module):
    """A mixer and a feed-forward, both behind a norm and a token shift, and added to the residual stream.

    The stream is `[N, 2E]`: behind its own channels it carries the first layer's values to all others.
    """

    def __init__(self, config: Rwkv7Config, *, first: bool, context: ModelContext) -> None:
        def norm() -> LayerNorm:
            return LayerNorm(
                config.hidden_size, epsilon=config.norm_epsilon, affine=True, bias=config.norm_bias, context=context
            )

        self.context = context
        width = config.hidden_size
        self.first_norm = norm() if first and config.norm_first else None
        self.mixer_norm, self.mlp_norm = norm(), norm()
        self.mixer = TimeMix(config.time_mix, first=first, context=context)
        self.mlp_shift = TokenShift(width, ("k",), state="shift of the feed-forward", context=context)
        self.mlp = MLP(width, config.mlp_size, activation="relu2", bias=False, context=context)

    @property
    def keeps(self) -> Keeps:
        """What the mixer keeps, and the last input of the feed-forward."""
        (mixer,) = self.mixer.keeps
        assert isinstance(mixer, PerSlot)
        return (PerSlot((*mixer.states, self.mlp_shift.state)),)

    def __call__(self, x: jax.Array, cache: Cache, step: Step) -> tuple[jax.Array, Cache]:
        x, first_values = (self._whole(part) for part in jnp.split(x, 2, axis=1))
        x = x if self.first_norm is None else self.first_norm(x)
        mixed, first_values, cache = self.mixer(self.mixer_norm(x), first_values, cache, step)
        x = x + mixed
        (shifted,), cache = self.mlp_shift(self.mlp_norm(x), cache, step)
        parts = (x + self.mlp(shifted, step), first_values)
        return self._whole(jnp.concatenate([self._whole(part) for part in parts], axis=1)), cache

    def _whole(self, stream: jax.Array) -> jax.Array:
        """On a mesh each device has all channels, so that the values are sent once, behind the first layer."""
        return self.context.layout.constrain_stream(stream, platform=self.context.platform)


class RWKV7ForCausalLM(Decoder):
    """A `Model`, as flash-linear-attention publishes its weights."""

    WEIGHTS = (
        Rule("embed.table", "model.embeddings.weight"),
        *(
            Rule(f"{target}.{kind}", f"{source}.{source_kind}")
            for target, source in (
                *((f"layers.*.{ours}", f"model.layers.*.{theirs}") for ours, theirs in NORMS.items()),
                ("norm", "model.norm"),
            )
            for kind, source_kind in (("scale", "weight"), ("bias", "bias"))
        ),
        *(
            Rule(f"layers.*.mixer.shift.of.{ours}", f"model.layers.*.attn.x_{theirs}", flat)
            for ours, theirs in SHIFTS.items()
        ),
        *(
            Rule(f"layers.*.mixer.{ours}.{part}", f"model.layers.*.attn.{theirs}_lora.lora.{source}")
            for ours, theirs in LOW_RANKS.items()
            for part, source in (("down.weight", "0.weight"), ("up.weight", "2.weight"), ("up.bias", "2.bias"))
            if (ours, part) != ("gate", "up.bias")
        ),
        *(Rule(f"layers.*.mixer.{ours}", f"model.layers.*.attn.{theirs}") for ours, theirs in VECTORS.items()),
        Rule("layers.*.mixer.norm_bias", "model.layers.*.attn.g_norm.bias"),
        *(
            Rule(f"layers.*.mixer.{ours}.weight", f"model.layers.*.attn.{theirs}_proj.weight")
            for ours, theirs in zip("qkvo", "rkvo", strict=True)
        ),
        Rule("layers.*.mlp_shift.of.k", "model.layers.*.ffn.x_k"),
        Rule("layers.*.mlp.up.weight", "model.layers.*.ffn.key.weight"),
        Rule("layers.*.mlp.down.weight", "model.layers.*.ffn.value.weight"),
        Rule("head.table", "lm_head.weight", absent_if="tie_word_embeddings"),
    )
    IGNORED: ClassVar[Mapping[str, Ignored]] = {
        **dict.fromkeys(
            ("attn_mode", "fuse_cross_entropy", "fuse_linear_cross_entropy"),
            Ignored("how it is computed, not what"),
        ),
        "auto_map": Ignored("code of the repository, which is never run"),
        "use_l2warp": Ignored("only used in training"),
        "attn": Ignored("all layers keep states", allowed=(None,)),
        "max_position_embeddings": Ignored("of layers of attention, of which there are none"),
    }
    config: Rwkv7Config

    def __init__(self, config: Rwkv7Config, context: ModelContext) -> None:
        super().__init__(config, context)
        self.layers = nnx.List(
            [Rwkv7Layer(config, first=layer == 0, context=context) for layer in range(config.num_layers)]
        )
        self.norm = LayerNorm(
            config.hidden_size, epsilon=config.norm_epsilon, affine=True, bias=config.norm_bias, context=context
        )

    @classmethod
    def read_config(cls, reader: ConfigReader) -> Rwkv7Config:
        mix = _read_time_mix(reader)
        _check_values(reader, mix)
        reader.choice("hidden_act", "sqrelu", ("sqrelu",))
        ratio = reader.optional("hidden_ratio", 4.0, float)
        mlp_size = reader.nullable_size("intermediate_size", None) or 32 * -(-int(mix.width * ratio) // 32)
        return Rwkv7Config(
            vocab_size=reader.size("vocab_size"),
            hidden_size=mix.width,
            mlp_size=mlp_size,
            num_layers=reader.size("num_hidden_layers"),
            num_heads=mix.heads,
            num_kv_heads=mix.heads,
            head_dim=mix.head_dim,
            max_position_embeddings=LONGEST,
            tie_word_embeddings=reader.optional("tie_word_embeddings", False, bool),
            dtype=read_stored_dtype(reader),
            time_mix=mix,
            norm_epsilon=reader.optional("norm_eps", 1e-5, float),
            norm_bias=reader.optional("norm_bias", True, bool),
            norm_first=reader.optional("norm_first", True, bool),
        )

    def embed_tokens(
        self, tokens: jax.Array, positions: jax.Array, adapters: AdapterRows | None = None
    ) -> tuple[jax.Array, Shared]:
        x = self.embed(tokens, adapters)
        return jnp.concatenate([x, jnp.zeros_like(x)], axis=1), Shared()

    def final_norm(self, x: jax.Array) -> jax.Array:
        return self.norm(x[:, : self.config.hidden_size])


def _read_time_mix(reader: ConfigReader) -> TimeMixShape:
    width, head_dim = reader.size("hidden_size"), reader.nullable_size("head_dim", 64)
    heads = reader.nullable_size("num_heads", None)
    if head_dim is None:  # otherwise it is what counts, whatever `num_heads` says
        head_dim = width // (heads or 1)
    if width % head_dim:
        raise ConfigError(f"config.json: heads of head_dim={head_dim} channels do not make up hidden_size={width}")
    return TimeMixShape(
        width=width,
        heads=width // head_dim,
        head_dim=head_dim,
        decay_rank=reader.optional_size("decay_low_rank_dim", 64),
        rate_rank=reader.optional_size("a_low_rank_dim", 64),
        gate_rank=reader.optional_size("gate_low_rank_dim", 128),
        value_rank=reader.optional_size("v_low_rank_dim", 16),
        norm_epsilon=head_dim * reader.optional("norm_eps", 1e-5, float),
        length_epsilon=1e-6 if reader.optional("fuse_norm", True, bool) else 1e-24,
    )


def _check_values(reader: ConfigReader, mix: TimeMixShape) -> None:
    """A value has as many channels as a key, in all layers."""
    found: Any = reader.raw("value_dim")
    sizes = found if isinstance(found, list) else [found]
    if any(size not in (None, mix.width) for size in sizes):
        raise ConfigError(f"config.json: value_dim={found!r} is not built, only hidden_size={mix.width} for each layer")
