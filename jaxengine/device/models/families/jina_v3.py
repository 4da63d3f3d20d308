"""Jina's third embedding models: XLM-RoBERTa with rotary positions, as transformers has it and as its makers published it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from jaxengine.contract.pooling import Pooling
from jaxengine.device.layers.block import FeedForward
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.shared.bert import IGNORED_BY_BERT, norm_rules
from jaxengine.device.models.shared.encoder import Encoder
from jaxengine.device.models.shared.rotary_encoder import (
    NAMES,
    RotaryEncoder,
    RotaryEncoderConfig,
    read_activation,
    read_rotary_encoder,
)
from jaxengine.device.weights.rules import Array, Ignore, KvHeads, Made, Rule, Transform, part

LAYER = "encoder.layers.*"
MATRICES = {
    **{f"attention.{name}": ("mixer.Wqkv", part(at, 3)) for at, name in enumerate("qkv")},
    "attention.o": ("mixer.out_proj", None),
    "mlp.up": ("mlp.fc1", None),
    "mlp.down": ("mlp.fc2", None),
}
NORMS = {"embed_norm": "emb_ln", "layers.*.attention_norm": f"{LAYER}.norm1", "layers.*.mlp_norm": f"{LAYER}.norm2"}
EMBEDDINGS = {"embed": "embeddings.word_embeddings", "kinds": "embeddings.token_type_embeddings"}
"""By our names, theirs, and what cuts a matrix out."""


@dataclass(frozen=True, kw_only=True)
class JinaRobertaConfig(RotaryEncoderConfig):
    """An adapter's two matrices are multiplied and scaled by `adapter_scale`."""

    adapter_scale: float


def adapted(after: Transform | None, *, of_embeddings: bool) -> Transform:
    """A matrix and two of its last task's adapter, of which the second comes first but of embeddings, become one matrix."""

    def merge(tensors: tuple[Array, Array, Array], config: KvHeads, shape: tuple[int, ...]) -> Array | Made:
        assert isinstance(config, JinaRobertaConfig)
        matrix, first, second = (tensor.astype(np.float32) for tensor in tensors)
        pair = (first[-1], second[-1]) if of_embeddings else (second[-1], first[-1])
        merged = matrix + (pair[0] @ pair[1]).reshape(matrix.shape) * np.float32(config.adapter_scale)
        return merged if after is None else after(merged, config, shape)

    return merge


def table(*, adapters: bool) -> tuple[Rule | Ignore, ...]:
    """The weight table of a checkpoint without or with adapters beside its matrices."""

    def matrix(target: str, source: str, after: Transform | None = None, *, of_embeddings: bool = False) -> Rule:
        if not adapters:
            return Rule(target, f"[roberta.]{source}.weight", after)
        base = f"roberta.{source}.parametrizations.weight"
        also = (f"{base}.0.lora_A", f"{base}.0.lora_B")
        return Rule(target, f"{base}.original", adapted(after, of_embeddings=of_embeddings), also=also)

    return (
        *(matrix(f"{ours}.table", theirs, of_embeddings=True) for ours, theirs in EMBEDDINGS.items()),
        *(matrix(f"layers.*.{ours}.weight", f"{LAYER}.{theirs}", cut) for ours, (theirs, cut) in MATRICES.items()),
        *(
            Rule(f"layers.*.{ours}.bias", f"[roberta.]{LAYER}.{theirs}.bias", cut)
            for ours, (theirs, cut) in MATRICES.items()
        ),
        *norm_rules(NORMS, prefix="[roberta.]"),
        *(Ignore(f"{prefix}pooler.**", "for other heads") for prefix in ("", "roberta.")),
        Ignore("lm_head.**", "for masked words"),
    )


class JinaEmbeddingsV3Model(RotaryEncoder):
    """Adapters of tasks are files of their own, and not read."""

    POOLING: ClassVar[Pooling] = Pooling.MEAN
    WEIGHTS: ClassVar[Sequence[Rule | Ignore]] = table(adapters=False)
    IGNORED: ClassVar[Mapping[str, Ignored]] = {
        key: value for key, value in IGNORED_BY_BERT.items() if key != "position_embedding_type"
    }

    def feed_forward(self) -> FeedForward:
        """BERT's."""
        return Encoder.feed_forward(self)

    @classmethod
    def read_config(cls, reader: ConfigReader) -> RotaryEncoderConfig:
        return RotaryEncoderConfig(**_read(reader), biases=True)


class JinaRobertaModel(JinaEmbeddingsV3Model):
    """As published: matrices beside adapters of five tasks, of which text-matching, the last one, is used, as vLLM does."""

    WEIGHTS: ClassVar[Sequence[Rule | Ignore]] = table(adapters=True)
    IGNORED: ClassVar[Mapping[str, Ignored]] = {
        **JinaEmbeddingsV3Model.IGNORED,
        "position_embedding_type": Ignored("how positions enter", allowed=("rotary",)),
        **dict.fromkeys(
            (
                *("auto_map", "emb_pooler", "load_trained_adapters", "lora_adaptations", "lora_dropout_p"),
                *("lora_main_params_trainable", "lora_prompts", "task_instructions", "truncate_dim", "use_flash_attn"),
                "use_reentrant",
            ),
            Ignored("of training, of other adapters, or says how it is computed and not what"),
        ),
    }

    @classmethod
    def read_config(cls, reader: ConfigReader) -> JinaRobertaConfig:
        fields = _read(reader, theta=reader.optional("rotary_emb_base", 10000.0, float))
        scale = reader.optional("lora_alpha", 1.0, float) / reader.optional_size("lora_rank", 4)
        return JinaRobertaConfig(**fields, biases=True, adapter_scale=scale)


def _read(reader: ConfigReader, *, theta: float = 20000.0) -> dict[str, Any]:
    activation = read_activation(reader, "hidden_act", "gelu")
    return read_rotary_encoder(reader, NAMES, theta=theta, activation=activation, epsilon_key="layer_norm_eps")
