"""Gemma 1 and 2: embeddings are scaled, norms offset from 1; Gemma 2 adds caps, windows and norms on both sides of a block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import jax
import jax.numpy as jnp

from jaxengine.device.layers.block import Norms
from jaxengine.device.layers.norm import RMSNorm
from jaxengine.device.layers.self_attention import AttentionShape
from jaxengine.device.layers.step import Shared
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.config.rotary_config import RotaryDecoderConfig, read_shared, read_windows_by_type
from jaxengine.device.models.shared.gemma import NORM_OFFSET, SANDWICH_NORM_WEIGHTS, scale_embeddings
from jaxengine.device.models.shared.rotary_decoder import ROTARY_DECODER_WEIGHTS, RotaryDecoder, bias_rules
from jaxengine.device.weights.rules import Ignore, Rule
from pallas_kernels import AdapterRows

WINDOW, PERIOD = 4096, 2


class GemmaForCausalLM(RotaryDecoder):
    """Gemma 1. The oldest files call their activation gelu and mean its approximation."""

    WEIGHTS: ClassVar[Sequence[Rule | Ignore]] = (*ROTARY_DECODER_WEIGHTS, *bias_rules("q", "k", "v", "o"))
    IGNORED: ClassVar[Mapping[str, Ignored]] = {
        "hidden_activation": Ignored("hidden_act says it too", allowed=(None, "gelu_pytorch_tanh")),
        "use_bidirectional_attention": Ignored("attention to later tokens is for encoders", allowed=(None, False)),
    }

    @classmethod
    def read_config(cls, reader: ConfigReader) -> RotaryDecoderConfig:
        shared = read_shared(reader, kv_heads=16, head_dim=256, tied=True, activation="gelu_pytorch_tanh")
        shared["activation"] = {"gelu": "gelu_pytorch_tanh"}.get(shared["activation"], shared["activation"])
        attention_bias = reader.optional("attention_bias", False, bool)
        return RotaryDecoderConfig(
            **shared,
            windows=(None,) * shared["num_layers"],
            qkv_bias=attention_bias,
            output_bias=attention_bias,
        )

    def make_norm(self) -> RMSNorm:
        config = self.config
        return RMSNorm(config.hidden_size, epsilon=config.rms_norm_eps, offset=NORM_OFFSET, context=self.context)

    def embed_tokens(
        self, tokens: jax.Array, positions: jax.Array, adapters: AdapterRows | None = None
    ) -> tuple[jax.Array, Shared]:
        x, shared = super().embed_tokens(tokens, positions, adapters)
        return scale_embeddings(x, hidden_size=self.config.hidden_size, dtype=self.context.dtype), shared


@dataclass(frozen=True, kw_only=True)
class Gemma2Config(RotaryDecoderConfig):
    """`score_cap` and `logit_cap` bound scores and logits smoothly; None leaves them."""

    scale: float
    score_cap: float | None
    logit_cap: float | None


class Gemma2ForCausalLM(GemmaForCausalLM):
    """Every other layer sees a window."""

    WEIGHTS = SANDWICH_NORM_WEIGHTS
    NORMS = Norms.SANDWICH
    IGNORED: ClassVar[Mapping[str, Ignored]] = {
        "hidden_act": Ignored("hidden_activation is what is read"),
        "cache_implementation": Ignored("how transformers keeps keys and values"),
        "use_bidirectional_attention": Ignored("attention to later tokens is for encoders", allowed=(None, False)),
    }
    config: Gemma2Config

    @classmethod
    def read_config(cls, reader: ConfigReader) -> Gemma2Config:
        shared = read_shared(
            reader,
            kv_heads=4,
            head_dim=256,
            tied=True,
            activation_key="hidden_activation",
            activation="gelu_pytorch_tanh",
        )
        attention_bias = reader.optional("attention_bias", False, bool)
        return Gemma2Config(
            **shared,
            windows=read_windows_by_type(reader, shared["num_layers"], window=WINDOW, period=PERIOD),
            qkv_bias=attention_bias,
            output_bias=attention_bias,
            scale=reader.optional("query_pre_attn_scalar", 256.0, float) ** -0.5,
            score_cap=reader.nullable("attn_logit_softcapping", 50.0, float),
            logit_cap=reader.nullable("final_logit_softcapping", 30.0, float),
        )

    def attention_shape(self, layer: int) -> AttentionShape:
        return replace(super().attention_shape(layer), scale=self.config.scale, soft_cap=self.config.score_cap)

    def logits(self, hidden: jax.Array, adapters: AdapterRows | None = None) -> jax.Array:
        logits, cap = super().logits(hidden, adapters), self.config.logit_cap
        return logits if cap is None else cap * jnp.tanh(logits / cap)
