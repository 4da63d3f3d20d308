"""A checkpoint in MXFP4, as gpt-oss is published, becomes the parameters of the model: kept as it is, or plain."""

from __future__ import annotations

import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from jaxengine.device.layers.schemes.by_path import Schemes
from jaxengine.device.layers.sharding import ONE_DEVICE
from jaxengine.device.models.config.quantization import read_quantization
from jaxengine.device.models.families.gpt_oss import GptOssForCausalLM
from jaxengine.device.models.parameters import abstract_model
from jaxengine.device.models.registry import read_config
from jaxengine.device.weights.checkpoint import open_checkpoint
from jaxengine.device.weights.formats.mxfp4 import Experts
from jaxengine.device.weights.loader import load
from jaxengine.startup.quantization import choose_schemes, unpacked
from pallas_kernels.scaled_matmul.dense import dense
from tests.device.models.cases import PROMPTS, Fixture
from tests.device.weights.files import write_single
from tests.integration.engines import greedy, run, start, token_ids
from tests.integration.quantised import prompt_scores

QUANTISED = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}


def packed(fixture: Fixture) -> tuple[dict[str, np.ndarray], dict[str, Experts]]:
    """The tensors of a checkpoint in MXFP4, random ones for experts, and what the latter stand for."""
    rng = np.random.default_rng(0)
    tensors, decoded = {}, {}
    for name, tensor in fixture.tensors.items():
        if not name.endswith(("gate_up_proj", "down_proj")):
            tensors[name] = tensor
            continue
        experts, in_size, out_size = tensor.shape
        blocks = rng.integers(0, 256, (experts, out_size, in_size // 32, 16)).astype(np.uint8)
        scales = rng.integers(121, 126, blocks.shape[:3]).astype(np.uint8)
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        decoded[name] = Experts(blocks, scales)
    return tensors, decoded


@pytest.mark.parametrize("kept", [False, True])
def test_packed_experts_are_loaded_as_what_they_stand_for(kept: bool, tmp_path: Path) -> None:
    fixture = Fixture.load("gpt-oss")
    tensors, decoded = packed(fixture)
    values = {**fixture.config, "quantization_config": QUANTISED}
    for name in ("dtype", "torch_dtype"):
        values.pop(name, None)
    config = read_config(GptOssForCausalLM, values)
    assert config.dtype == "bfloat16", "which the published files do not say"
    schemes = choose_schemes(None, values, GptOssForCausalLM.WEIGHTS)
    if not kept:
        schemes = Schemes(decoded=read_quantization(values))
    _, parameters = abstract_model(
        GptOssForCausalLM, config, dtype=jnp.bfloat16, layout=ONE_DEVICE, platform="cpu", schemes=schemes
    )
    rules = schemes.table(GptOssForCausalLM.WEIGHTS, parameters)
    checkpoint = unpacked(open_checkpoint(write_single(tmp_path, tensors)), schemes, GptOssForCausalLM.WEIGHTS)
    loaded = load(checkpoint, rules, parameters, config)
    for layer in range(config.num_layers):
        experts = f"model.layers.{layer}.mlp.experts"
        for number in range(config.experts.count):
            gate_up, down = decoded[f"{experts}.gate_up_proj"][number], decoded[f"{experts}.down_proj"][number]
            for part, expected in (("gate", gate_up[:, ::2]), ("up", gate_up[:, 1::2]), ("down", down)):
                path = f"layers.{layer}.mlp.{part}."
                found = loaded[path + "weight"][number]
                if kept:
                    assert found.dtype == jnp.uint8
                    options = {"group": 32, "compute": jnp.bfloat16, "pairs": "float4_e2m1fn", "inputs": 0}
                    found = dense(found, loaded[path + "scale"][number], None, **options)
                np.testing.assert_array_equal(np.asarray(found, np.float32), expected.astype(np.float32))


@pytest.mark.slow
@pytest.mark.usefixtures("quick_engines")
@pytest.mark.parametrize("size", [1, pytest.param(2, marks=pytest.mark.rare)])
def test_experts_that_are_kept_answer_as_plain_ones(size: int, tmp_path: Path) -> None:
    fixture = Fixture.load("gpt-oss")
    tensors, decoded = packed(fixture)
    plain = {
        name: np.ascontiguousarray([experts[number] for number in range(experts.shape[0])])
        for name, experts in decoded.items()
    }
    plain |= {name: tensor for name, tensor in tensors.items() if not name.endswith(("_blocks", "_scales"))}
    found = []
    for name, content, more in (("plain", plain, {}), ("kept", tensors, {"quantization_config": QUANTISED})):
        write_single(tmp_path / name, content)
        (tmp_path / name / "config.json").write_text(json.dumps({**fixture.config, **more}))
        engine = start(tmp_path / name, load_format="auto", dtype="float32", tensor_parallel_size=size)
        found.append((prompt_scores(engine, PROMPTS), token_ids(run(engine, PROMPTS, greedy(8)))))
        engine.close()
    (expected, tokens), (scores, own_tokens) = found
    np.testing.assert_allclose(scores, expected, atol=1e-3)
    assert own_tokens == tokens


@pytest.mark.parametrize(("option", "name"), [(None, "mxfp4"), ("mxfp4", "mxfp4"), ("int8", "int8")])
def test_experts_are_kept_as_stored_unless_others_are_asked_for(option, name):
    values = {"quantization_config": {"quant_method": "mxfp4"}}
    assert choose_schemes(option, values, GptOssForCausalLM.WEIGHTS).name == name
