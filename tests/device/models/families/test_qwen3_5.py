"""Qwen3.5 out of a checkpoint that also sees pictures, and with the experts of a layer in one tensor."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from jaxengine.device.layers.sharding import ONE_DEVICE
from jaxengine.device.models.parameters import abstract_model
from jaxengine.device.models.registry import read_config, resolve
from jaxengine.device.weights.matching import match
from tests.device.models.cases import PROMPTS, Fixture
from tests.device.models.paged import PagedModel

OUTER = {
    "vision_config": {"model_type": "qwen3_5_vision", "depth": 27},
    "image_token_id": 248_056,
    "video_token_id": 248_057,
    "vision_start_token_id": 248_053,
    "vision_end_token_id": 248_054,
}
UNREAD = ("model.visual.blocks.0.mlp.linear_fc1.weight", "mtp.layers.0.self_attn.q_proj.weight")


@pytest.mark.parametrize("case", ["qwen3_5", "qwen3_5-moe"])
def test_the_language_model_of_a_larger_one_is_found(case):
    fixture = Fixture.load(case)
    [architecture] = fixture.config["architectures"]
    config = {
        **OUTER,
        "architectures": [architecture.replace("ForCausalLM", "ForConditionalGeneration")],
        "text_config": {**fixture.config, "attn_output_gate": True, "mtp_num_hidden_layers": 1},
    }
    names = [name.replace("model.", "model.language_model.", 1) for name in fixture.shapes]
    model_class = resolve(config)
    read = replace(read_config(model_class, config), tower=None)  # as a start for texts alone has it
    _, parameters = abstract_model(model_class, read, dtype="bfloat16", layout=ONE_DEVICE, platform="cpu")
    assignments = match([*names, *UNREAD], model_class.WEIGHTS, parameters, read)
    assert {name for assignment in assignments for name in assignment.sources} == set(names)


def test_positions_in_three_dimensions_are_one_for_texts():
    fixture = Fixture.load("qwen3_5")
    ropes = {**fixture.config["rope_parameters"], "mrope_interleaved": True, "mrope_section": [1, 1, 0]}
    config = {**fixture.config, "rope_parameters": ropes}
    assert read_config(resolve(config), config) == read_config(resolve(config), fixture.config)


@pytest.mark.slow
def test_experts_in_one_tensor_are_those_of_many():
    fixture = Fixture.load("qwen3_5-moe")
    tensors = fixture.tensors
    for layer in range(fixture.config["num_hidden_layers"]):
        experts = f"model.layers.{layer}.mlp.experts"
        gates, ups, downs = (
            np.stack([tensors.pop(f"{experts}.{i}.{part}_proj.weight") for i in range(fixture.config["num_experts"])])
            for part in ("gate", "up", "down")
        )
        tensors |= {f"{experts}.gate_up_proj": np.concatenate([gates, ups], axis=1), f"{experts}.down_proj": downs}
    found = PagedModel(fixture.config, tensors).logprobs(PROMPTS, seq=5)
    for ours, theirs in zip(found, fixture.logprobs, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-4 * fixture.spread, rtol=0)
