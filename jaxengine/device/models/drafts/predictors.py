"""The layers that predict several tokens, of each family whose checkpoints have some."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from jaxengine.device.layers.block import Block
from jaxengine.device.layers.latent_attention import LatentAttention
from jaxengine.device.layers.self_attention import SelfAttention
from jaxengine.device.layers.stack import Layer
from jaxengine.device.models.drafts.multi_token import JOINED, Predictor, block_rules, named
from jaxengine.device.models.families.deepseek import DeepseekV3ForCausalLM, Glm4MoeLiteForCausalLM
from jaxengine.device.models.families.deepseek_sparse import DeepseekV32ForCausalLM, GlmMoeDsaForCausalLM
from jaxengine.device.models.families.ernie4_5_moe import Ernie4_5_MoeForCausalLM
from jaxengine.device.models.families.glm4_moe import Glm4MoeForCausalLM
from jaxengine.device.models.families.mimo import MiMoForCausalLM
from jaxengine.device.models.families.mimo_v2 import MiMoV2FlashForCausalLM
from jaxengine.device.models.families.minimax_m2 import MiniMaxM2ForCausalLM
from jaxengine.device.models.families.nemotron_h import NemotronHForCausalLM
from jaxengine.device.models.families.qwen3_5 import Qwen3_5ForCausalLM, Qwen3_5MoeForCausalLM
from jaxengine.device.models.families.qwen3_next import Qwen3NextForCausalLM
from jaxengine.device.models.shared.rotary_decoder import RotaryDecoder
from jaxengine.device.weights.rules import Rule

LAYERS = "[model.]layers.*."
"""What most families' layers are called in checkpoints."""


class _BehindTheLast(Predictor):
    """A layer numbered behind the model's last, with norms of its own."""

    @classmethod
    def rules(cls, config: Any) -> tuple[Rule, ...]:
        source = f"[model.]layers.{config.num_layers}."
        return (
            *named(source, {**JOINED, "norm.scale": "shared_head.norm"}),
            *block_rules(cls.WEIGHTS, named=LAYERS, source=source),
        )


class DeepseekV3Predictor(_BehindTheLast, DeepseekV3ForCausalLM):
    """A `Draft`."""


class DeepseekV32Predictor(_BehindTheLast, DeepseekV32ForCausalLM):
    """A `Draft`."""


class GlmMoeDsaPredictor(_BehindTheLast, GlmMoeDsaForCausalLM):
    """A `Draft`, with an indexer whatever layers share."""

    def blocks(self) -> Sequence[Layer]:
        attention = LatentAttention(self.config.attention, context=self.context)
        return (Block(attention, self.feed_forward(self.config.num_layers - 1), norm=self.make_norm),)


class Glm4MoeLitePredictor(_BehindTheLast, Glm4MoeLiteForCausalLM):
    """A `Draft`."""


class Glm4MoePredictor(_BehindTheLast, Glm4MoeForCausalLM):
    """A `Draft`."""


class Ernie4_5_MoePredictor(Predictor, Ernie4_5_MoeForCausalLM):  # noqa: N801 - as the target is named
    """A `Draft` whose block has no experts. It reads the stream behind the last layer, and its norm is the target's."""

    SHARED: ClassVar[tuple[str, ...]] = ("embed", "head", "norm")
    NAMES: ClassVar[Mapping[str, str]] = {
        "token_norm.scale": "mtp_emb_norm.0",
        "state_norm.scale": "mtp_hidden_norm.0",
        "join.weight": "mtp_linear_proj.0",
    }

    @property
    def taps(self) -> tuple[int, ...]:
        return (self.config.num_layers,)

    def blocks(self) -> Sequence[Layer]:
        mlp = RotaryDecoder.feed_forward(self, 0)
        attention = SelfAttention(self.attention_shape(0), context=self.context)
        return (Block(attention, mlp, norm=self.make_norm),)

    @classmethod
    def rules(cls, config: Any) -> tuple[Rule, ...]:
        return (
            *named("[model.]", cls.NAMES),
            *block_rules(cls.WEIGHTS, named=LAYERS, source="[model.]mtp_block.0."),
        )


class MiMoPredictor(Predictor, MiMoForCausalLM):
    """A `Draft`."""

    STATE_FIRST = HANDS_NORMED = True
    NAMES: ClassVar[Mapping[str, str]] = {
        "token_norm.scale": "token_layernorm",
        "state_norm.scale": "hidden_layernorm",
        "join.weight": "input_proj",
        "norm.scale": "final_layernorm",
    }

    @classmethod
    def rules(cls, config: Any) -> tuple[Rule, ...]:
        source = "[model.]mtp_layers.0."
        return (*named(source, cls.NAMES), *block_rules(cls.WEIGHTS, named=LAYERS, source=source))


class MiMoV2FlashPredictor(Predictor, MiMoV2FlashForCausalLM):
    """A `Draft` whose block sees a window and has no experts."""

    HANDS_NORMED = True

    def blocks(self) -> Sequence[Layer]:
        windowed = next(layer for layer, window in enumerate(self.config.windows) if window is not None)
        mlp = RotaryDecoder.feed_forward(self, windowed)
        attention = SelfAttention(self.attention_shape(windowed), context=self.context)
        return (Block(attention, mlp, norm=self.make_norm),)

    @classmethod
    def rules(cls, config: Any) -> tuple[Rule, ...]:
        source = "[model.]mtp.layers.0."
        own = {"post_attention_layernorm": "pre_mlp_layernorm"}
        return (
            *named(source, {**JOINED, "norm.scale": "final_layernorm"}),
            *block_rules(cls.WEIGHTS, named=LAYERS, source=source, renamed=own),
        )


class MiniMaxM2Predictor(Predictor, MiniMaxM2ForCausalLM):
    """A `Draft`, whose norm is the target's."""

    SHARED: ClassVar[tuple[str, ...]] = ("embed", "head", "norm")
    STATE_FIRST = True
    NAMES: ClassVar[Mapping[str, str]] = {
        "token_norm.scale": "e_norm",
        "state_norm.scale": "h_norm",
        "join.weight": "linear_projection",
    }

    @classmethod
    def rules(cls, config: Any) -> tuple[Rule, ...]:
        source = "[model.]mtp_layers.0."
        return (*named(source, cls.NAMES), *block_rules(cls.WEIGHTS, named=LAYERS, source=source))


class _AfterAttention(Predictor):
    """Qwen's: tensors under a name of their own, and a block with attention, and what the first layer has beside it."""

    HANDS_NORMED = True
    NAMES: ClassVar[Mapping[str, str]] = {
        "token_norm.scale": "pre_fc_norm_embedding",
        "state_norm.scale": "pre_fc_norm_hidden",
        "join.weight": "fc",
        "norm.scale": "norm",
    }

    def blocks(self) -> Sequence[Layer]:
        attends = next(layer for layer in range(self.config.num_layers) if layer not in self.config.recurrent)
        attention = SelfAttention(self.attention_shape(attends), context=self.context)
        return (Block(attention, self.feed_forward(0), norm=self.make_norm),)

    @classmethod
    def rules(cls, config: Any) -> tuple[Rule, ...]:
        source = "[language_model.]mtp."
        return (*named(source, cls.NAMES), *block_rules(cls.WEIGHTS, named=LAYERS, source=f"{source}layers.0."))


class Qwen3NextPredictor(_AfterAttention, Qwen3NextForCausalLM):
    """A `Draft`."""


class Qwen3_5Predictor(_AfterAttention, Qwen3_5ForCausalLM):  # noqa: N801
    """A `Draft`."""


class Qwen3_5MoePredictor(_AfterAttention, Qwen3_5MoeForCausalLM):  # noqa: N801
    """A `Draft`."""


class NemotronHPredictor(Predictor, NemotronHForCausalLM):
    """A `Draft` of several blocks, each one thing; `draft_kinds` says which."""

    HANDS_NORMED = True

    def blocks(self) -> Sequence[Layer]:
        return [self.block(self.config.kinds.index(kind)) for kind in self.config.draft_kinds]

    @classmethod
    def rules(cls, config: Any) -> tuple[Rule, ...]:
        first, last = "mtp.layers.0.", f"mtp.layers.{len(config.draft_kinds) - 1}."
        blocks = (
            rule
            for number in range(len(config.draft_kinds))
            for rule in block_rules(
                cls.WEIGHTS, named="[backbone.]layers.*.", source=f"mtp.layers.{number}.", number=number
            )
        )
        return (*named(first, JOINED), *named(last, {"norm.scale": "final_layernorm"}), *blocks)
