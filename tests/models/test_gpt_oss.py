"""A checkpoint in MXFP4, as gpt-oss is published, becomes the parameters of the model."""

from __future__ import annotations

from pathlib import Path

import jax.numpy as jnp
import numpy as np

from jaxengine.layers.schemes import find_scheme, scheme_rules
from jaxengine.models.gpt_oss import GptOssForCausalLM
from jaxengine.models.hf import read_config
from jaxengine.models.parameters import abstract_model
from jaxengine.weights.checkpoint import open_checkpoint
from jaxengine.weights.loader import load
from jaxengine.weights.mxfp4 import DecodedExperts
from tests.models.cases import Fixture
from tests.weights.files import write_single


def test_packed_experts_are_loaded_as_what_they_stand_for(tmp_path: Path) -> None:
    fixture = Fixture.load("gpt-oss")
    rng = np.random.default_rng(0)
    tensors, decoded = {}, {}
    for name, tensor in fixture.tensors.items():
        if not name.endswith(("gate_up_proj", "down_proj")):
            tensors[name] = tensor
            continue
        experts, in_size, out_size = tensor.shape
        blocks = rng.integers(0, 256, (experts, out_size, in_size // 32, 16)).astype(np.uint8)
        scales = rng.integers(120, 130, blocks.shape[:3]).astype(np.uint8)
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        decoded[name] = DecodedExperts(blocks, scales)
    quantised = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}
    config = read_config(GptOssForCausalLM, {**fixture.config, "quantization_config": quantised})
    _, parameters = abstract_model(GptOssForCausalLM, config, dtype=jnp.bfloat16, mesh=None, platform="cpu")
    rules = scheme_rules(GptOssForCausalLM.WEIGHTS, find_scheme(None))
    loaded = load(open_checkpoint(write_single(tmp_path, tensors)), rules, parameters, config)
    for layer in range(config.num_layers):
        experts = f"model.layers.{layer}.mlp.experts"
        for number in range(config.experts.count):
            gate_up, down = decoded[f"{experts}.gate_up_proj"][number], decoded[f"{experts}.down_proj"][number]
            for part, expected in (("gate", gate_up[:, ::2]), ("up", gate_up[:, 1::2]), ("down", down)):
                found = loaded[f"layers.{layer}.mlp.{part}.weight"][number]
                np.testing.assert_array_equal(np.asarray(found, np.float32), expected.astype(np.float32))
