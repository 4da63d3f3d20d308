"""gpt-oss: experts with biases in every layer, attention with sinks, windows in every other layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from jaxengine.device.layers.activation import ClampedGate
from jaxengine.device.layers.experts import ExpertsShape
from jaxengine.device.layers.routing import Routing
from jaxengine.device.layers.self_attention import AttentionShape
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.config.rotary_config import read_shared, read_windows_by_type
from jaxengine.device.models.families.mixtral import MixtralForCausalLM
from jaxengine.device.models.shared.experts import TRAINING, ExpertsConfig, check_chosen, read_num_experts
from jaxengine.device.models.shared.rotary_decoder import WITHOUT_MLP, bias_rules
from jaxengine.device.weights.rules import Array, KvHeads, Rule, Transform, transpose

LAYER = "[model.]layers.*"
WINDOW, PERIOD, THETA = 128, 2, 150_000.0
"""Hugging Face's defaults: positions that a token sees, of so many layers the last sees everything, and the rotary base."""


def _every_other(first: int) -> Transform:
    """Gates (0) or what they let through (1) of one expert's `[in, 2 * out]` or `[2 * out]`, as `[out, in]` or `[out]`."""

    def cut(fused: Array, config: KvHeads, shape: tuple[int, ...]) -> Array:
        return fused[..., first::2].T

    return cut


class GptOssForCausalLM(MixtralForCausalLM):
    """A `Model`. The published checkpoints have their experts in MXFP4, which is how they are kept, others in bfloat16."""

    WEIGHTS = (
        *WITHOUT_MLP,
        *bias_rules("q", "k", "v", "o"),
        Rule("layers.*.attention.sinks", f"{LAYER}.self_attn.sinks"),
        Rule("layers.*.mlp.router", f"{LAYER}.mlp.router.weight"),
        Rule("layers.*.mlp.router_bias", f"{LAYER}.mlp.router.bias"),
        *(
            Rule(
                f"layers.*.mlp.{name}.{kind}",
                f"{LAYER}.mlp.experts.gate_up_proj{suffix}",
                _every_other(first),
                each=True,
            )
            for kind, suffix in (("weight", ""), ("bias", "_bias"))
            for first, name in enumerate(("gate", "up"))
        ),
        Rule("layers.*.mlp.down.weight", f"{LAYER}.mlp.experts.down_proj", transpose, each=True),
        Rule("layers.*.mlp.down.bias", f"{LAYER}.mlp.experts.down_proj_bias"),
        *(  # as GGUF has them, apart
            Rule(f"layers.*.mlp.{name}.{kind}", f"{LAYER}.mlp.experts.{{expert}}.{name}_proj.{kind}")
            for name in ("gate", "up", "down")
            for kind in ("weight", "bias")
        ),
    )
    IGNORED: ClassVar[Mapping[str, Ignored]] = {
        **TRAINING,
        "experts_per_token": Ignored("an older name of num_experts_per_tok"),
        "initial_context_length": Ignored("original_max_position_embeddings says it too"),
    }

    @classmethod
    def read_config(cls, reader: ConfigReader) -> ExpertsConfig:
        shared = read_shared(reader, kv_heads=8, head_dim=64, theta=THETA, epsilon=1e-5)
        if shared["dtype"] is None and (reader.raw("quantization_config") or {}).get("quant_method") == "mxfp4":
            shared["dtype"] = "bfloat16"  # as the published checkpoints are, but for their experts
        bias = reader.optional("attention_bias", True, bool)
        experts = ExpertsShape(
            width=shared["hidden_size"],
            inner=shared["mlp_size"],
            activation=ClampedGate(
                slope=reader.optional("swiglu_alpha", 1.702, float), limit=reader.optional("swiglu_limit", 7.0, float)
            ),
            routing=Routing(
                count=read_num_experts(reader, 128),
                chosen=reader.optional_size("num_experts_per_tok", 4),
                normalised=True,
            ),
            bias=True,
        )
        check_chosen(experts)
        return ExpertsConfig(
            **shared,
            windows=read_windows_by_type(reader, shared["num_layers"], window=WINDOW, period=PERIOD),
            qkv_bias=bias,
            output_bias=bias,
            experts=experts,
        )

    def attention_shape(self, layer: int) -> AttentionShape:
        return replace(super().attention_shape(layer), sinks=True)
