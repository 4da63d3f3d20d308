"""The decoder that Mamba and Mamba 2 share: every layer is a state space, and of a sequence nothing is kept but states."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
from flax import nnx

from jaxengine.device.layers.block import HalfBlock, Mixer
from jaxengine.device.layers.context import ModelContext
from jaxengine.device.layers.norm import RMSNorm
from jaxengine.device.layers.step import Shared
from jaxengine.device.models.config.decoder_config import DecoderConfig, read_stored_dtype
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.shared.decoder import Decoder
from jaxengine.device.models.shared.state_spaces import INITIAL_STEPS
from jaxengine.device.weights.rules import Ignore, Rule
from pallas_kernels import AdapterRows

LONGEST = 1 << 20
"""The longest context where config.json says nothing: no position enters, and a state is as large whatever came before."""
MIXER = "[backbone.]layers.*.mixer"
"""What checkpoints call that of a layer."""
NOT_STATES: tuple[Rule | Ignore, ...] = (
    Rule("embed.table", "[backbone.]embeddings.weight"),
    Rule("layers.*.norm.scale", "[backbone.]layers.*.norm.weight"),
    Rule("norm.scale", "[backbone.]norm_f.weight"),
    Rule("head.table", "lm_head.weight", absent_if="tie_word_embeddings"),
)
"""A weight table but for mixers."""
TRAINING: Mapping[str, Ignored] = {
    **INITIAL_STEPS,
    "rescale_prenorm_residual": Ignored("how training began"),
    "residual_in_fp32": Ignored("the residual stream is in the dtype of activations"),
    "rms_norm": Ignored("there always is one", allowed=(True,)),
}
"""Keys that both leave unread."""


@dataclass(frozen=True, kw_only=True)
class StatesAloneConfig(DecoderConfig):
    """`norm_epsilon` is that of the norms of the residual stream."""

    norm_epsilon: float


class StatesAlone(Decoder):
    """A `Model`."""

    IGNORED: ClassVar[Mapping[str, Ignored]] = TRAINING
    config: StatesAloneConfig

    def __init__(self, config: StatesAloneConfig, context: ModelContext) -> None:
        super().__init__(config, context)
        self.layers = nnx.List([HalfBlock(mixer=self.mixer(), norm=self.make_norm()) for _ in range(config.num_layers)])
        self.norm = self.make_norm()

    def mixer(self) -> Mixer:
        """That of a layer."""
        raise NotImplementedError

    def make_norm(self) -> RMSNorm:
        """A norm of the residual stream."""
        return RMSNorm(self.config.hidden_size, epsilon=self.config.norm_epsilon, context=self.context)

    def embed_tokens(
        self, tokens: jax.Array, positions: jax.Array, adapters: AdapterRows | None = None
    ) -> tuple[jax.Array, Shared]:
        return self.embed(tokens, adapters), Shared()

    def final_norm(self, x: jax.Array) -> jax.Array:
        return self.norm(x)


def read_states_alone(reader: ConfigReader, *, tied: bool, heads: int, head_dim: int) -> dict[str, Any]:
    """The fields of `StatesAloneConfig`. `heads` of `head_dim` are those of a mixer."""
    return {
        "vocab_size": reader.size("vocab_size"),
        "hidden_size": reader.size("hidden_size"),
        "mlp_size": 0,
        "num_layers": reader.size("num_hidden_layers"),
        "num_heads": heads,
        "num_kv_heads": heads,
        "head_dim": head_dim,
        "max_position_embeddings": reader.optional_size("max_position_embeddings", LONGEST),
        "tie_word_embeddings": reader.optional("tie_word_embeddings", tied, bool),
        "dtype": read_stored_dtype(reader),
        "norm_epsilon": reader.optional("layer_norm_epsilon", 1e-5, float),
    }
