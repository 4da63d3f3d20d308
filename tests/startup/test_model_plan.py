"""How the devices of a plan share a model."""

from __future__ import annotations

import json

import pytest

from jaxengine.device.runtime.memory import parameter_bytes
from jaxengine.device.runtime.target import LOCAL
from jaxengine.errors import ConfigError
from jaxengine.options.config import EngineConfig
from jaxengine.startup.model_plan import plan_model
from tests.device.models.cases import Fixture
from tests.targets.tpu import available


def plan(tmp_path, name, **options):
    fixture = Fixture.load("qwen3-moe")
    config = {
        **fixture.config,
        "moe_intermediate_size": options.pop("inner", 32),
        "num_local_experts": 8,
        "num_key_value_heads": 8,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    given = EngineConfig.from_options(model=str(tmp_path), load_format="dummy", **options)
    return plan_model(given, weights=False, target=available(name) if name else LOCAL)


@pytest.mark.parametrize("expert_parallel", [False, True])
def test_devices_share_experts_as_they_are_told(tmp_path, expert_parallel):
    mesh = plan(tmp_path, None, tensor_parallel_size=4, enable_expert_parallel=expert_parallel).layout.mesh
    assert dict(mesh.shape) == {"data": 1, "expert": 4 if expert_parallel else 1, "tensor": 1 if expert_parallel else 4}


@pytest.mark.tpu_compile
@pytest.mark.parametrize(("inner", "whole"), [(512, False), (768, True), (256, True)])
def test_on_a_tpu_experts_stay_whole_where_parts_would_be_copied(tmp_path, inner, whole):
    mesh = plan(tmp_path, "v6e-4", inner=inner, tensor_parallel_size=4).layout.mesh
    assert dict(mesh.shape) == {"data": 1, "expert": 4 if whole else 1, "tensor": 1 if whole else 4}


def test_without_experts_there_is_nothing_to_give(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(Fixture.load("llama").config))
    given = EngineConfig.from_options(model=str(tmp_path), load_format="dummy", enable_expert_parallel=True)
    with pytest.raises(ConfigError, match="enable_expert_parallel is for models with experts, and this one has none"):
        plan_model(given, weights=False)


def test_what_pools_has_no_drafts(tmp_path):
    with pytest.raises(ConfigError, match="speculative_config is for models that generate, and this one pools"):
        plan(tmp_path, None, runner="pooling", speculative_config={"method": "ngram", "num_speculative_tokens": 2})


def test_weights_in_the_hosts_memory_mean_nothing_on_a_cpu(tmp_path, caplog):
    with caplog.at_level("INFO", "jaxengine"):
        plan(tmp_path, None, cpu_offload_gb=4)
    assert "cpu_offload_gb=4 means nothing on a CPU" in caplog.text


@pytest.mark.tpu_compile
def test_weights_in_the_hosts_memory_of_a_tpu(tmp_path):
    plans = [plan(tmp_path, "v6e-4", cpu_offload_gb=gib, tensor_parallel_size=4) for gib in (0, 4)]
    kinds = [{struct.sharding.memory_kind for struct in each.parameters.values()} for each in plans]
    assert "pinned_host" in kinds[1] - kinds[0]
    assert parameter_bytes(plans[1].parameters) < parameter_bytes(plans[0].parameters)
