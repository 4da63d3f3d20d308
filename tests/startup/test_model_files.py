"""What a model is by its small files, and that those of one that is refused are all that is fetched."""

from __future__ import annotations

import json

import pytest

from jaxengine.device.weights.source import ResolvedModel
from jaxengine.errors import CheckpointError, ConfigError
from jaxengine.options.config import EngineConfig
from jaxengine.startup import model_files
from jaxengine.startup.model_files import read_config_json, read_model
from jaxengine.startup.model_plan import plan_model
from tests.device.models.cases import Fixture
from tests.integration.engines import write_config


def test_a_model_that_is_refused_is_not_fetched(tmp_path, monkeypatch):
    """NVIDIA's ModelOpt says in a file of its own that weights are quantised."""
    (tmp_path / "config.json").write_text(json.dumps(Fixture.load("llama").config))
    asked = []

    def resolve(model, *, revision, weights, **options):
        asked.append((revision, weights))
        return ResolvedModel(tmp_path, "acme/tiny", "hub", "1" * 40)

    monkeypatch.setattr(model_files, "resolve", resolve)
    given = EngineConfig.from_options(model="acme/tiny", revision="main")
    plan_model(given)
    assert asked == [("main", False), ("1" * 40, True)]
    (tmp_path / "hf_quant_config.json").write_text(json.dumps({"quantization": {"quant_algo": "W4A8_AWQ"}}))
    with pytest.raises(ConfigError, match="ModelOpt's quant_algo 'W4A8_AWQ' is not built"):
        plan_model(given)
    assert asked[2:] == [("main", False)]


def test_a_config_json_is_enough_for_a_plan(tmp_path):
    path = write_config(tmp_path) / "config.json"
    options = EngineConfig.from_options(model=str(path), hf_overrides={"rope_theta": 5.0}).model
    files = read_model(options, config_alone=True)
    assert files.model_class.__name__ == "LlamaForCausalLM"
    assert files.generates
    assert files.config.rope.theta == files.config_json["rope_theta"] == 5.0
    with pytest.raises(ConfigError, match=r"is a file; name a \.gguf file, or the directory"):
        read_model(options)


def test_without_a_head_none_can_be_quantised(tmp_path):
    write_config(tmp_path)
    options = EngineConfig.from_options(model=str(tmp_path), runner="pooling", lm_head_dtype="int8").model
    with pytest.raises(ConfigError, match="lm_head_dtype='int8' was asked for, and this model generates nothing"):
        read_model(options)


def test_no_config_json(tmp_path):
    with pytest.raises(
        CheckpointError, match=r"has no config\.json; name a Hugging Face checkpoint directory or hub id"
    ):
        read_config_json(tmp_path)
