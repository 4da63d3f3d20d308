"""MiMo 7B is Qwen2 but for layers that are left unread."""

from __future__ import annotations

from jaxengine.device.layers.sharding import ONE_DEVICE
from jaxengine.device.models.parameters import abstract_model
from jaxengine.device.models.registry import read_config, resolve
from jaxengine.device.weights.matching import match
from tests.device.models.cases import Fixture

OWN = {
    "architectures": ["MiMoForCausalLM"],
    "attention_bias": True,
    "model_type": "mimo",
    "num_nextn_predict_layers": 1,
    "use_mrope": False,
}


def test_it_is_qwen2_with_more_layers_behind_it():
    fixture = Fixture.load("qwen2")
    config = {**fixture.config, **OWN}
    model_class = resolve(config)
    read = read_config(model_class, config)
    assert read == read_config(resolve(fixture.config), fixture.config)
    _, parameters = abstract_model(model_class, read, dtype="bfloat16", layout=ONE_DEVICE, platform="cpu")
    names = [*fixture.shapes, "model.mtp_layers.0.self_attn.q_proj.weight"]
    assignments = match(names, model_class.WEIGHTS, parameters, read)
    assert {name for assignment in assignments for name in assignment.sources} == set(fixture.shapes)
