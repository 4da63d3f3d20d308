"""Phi-3 and Phi-4: Llama whose checkpoints hold queries, keys and values as one matrix, and gate and up as another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.config.rotary_config import RotaryDecoderConfig, read_shared
from jaxengine.device.models.shared.rotary_decoder import ROTARY_DECODER_WEIGHTS, RotaryDecoder, half_split_rotary
from jaxengine.device.weights.rules import Array, KvHeads, Rule, chain, part, repeat_kv_heads

QKV, GATE_UP = "[model.]layers.*.self_attn.qkv_proj.weight", "[model.]layers.*.mlp.gate_up_proj.weight"


def _queries(fused: Array, config: KvHeads, shape: tuple[int, ...]) -> Array:
    return fused[: -2 * config.num_kv_heads * config.head_dim]


def _keys(fused: Array, config: KvHeads, shape: tuple[int, ...]) -> Array:
    kv = config.num_kv_heads * config.head_dim
    return fused[-2 * kv : -kv]


def _values(fused: Array, config: KvHeads, shape: tuple[int, ...]) -> Array:
    return fused[-config.num_kv_heads * config.head_dim :]


FUSED = (
    Rule("layers.*.attention.q.weight", QKV, _queries),
    Rule("layers.*.attention.k.weight", QKV, chain(_keys, repeat_kv_heads)),
    Rule("layers.*.attention.v.weight", QKV, chain(_values, repeat_kv_heads)),
    Rule("layers.*.mlp.gate.weight", GATE_UP, part(0, 2)),
    Rule("layers.*.mlp.up.weight", GATE_UP, part(1, 2)),
)


class Phi3ForCausalLM(RotaryDecoder):
    """A `Model`. Of Phi-4-mini's heads a part turns."""

    WEIGHTS = half_split_rotary(
        (
            *(
                row
                for row in ROTARY_DECODER_WEIGHTS
                if not isinstance(row, Rule) or row.target not in {rule.target for rule in FUSED}
            ),
            *FUSED,
        )
    )
    IGNORED: ClassVar[Mapping[str, Ignored]] = {
        **dict.fromkeys(("embd_pdrop", "resid_pdrop"), Ignored("only used in training")),
        "original_max_position_embeddings": Ignored("belongs to scaled positions"),
        "attention_bias": Ignored("Phi-3 has no biases", allowed=(False,)),
        "auto_map": Ignored("code of the repository, which is never run"),
    }

    @classmethod
    def read_config(cls, reader: ConfigReader) -> RotaryDecoderConfig:
        shared = read_shared(reader, kv_heads=None, head_dim=None, epsilon=1e-5, partial_rotary=1.0)
        return RotaryDecoderConfig(
            **shared,
            windows=(reader.nullable_size("sliding_window", None),) * shared["num_layers"],
        )
