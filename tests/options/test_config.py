"""Engine options: complete, frozen, strict about names and values."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from jaxengine.errors import ConfigError
from jaxengine.options.config import EngineConfig
from jaxengine.options.option import iter_options


def test_defaults_are_those_that_users_know() -> None:
    config = EngineConfig()
    assert config == EngineConfig.from_options()
    assert (config.model.model, config.model.dtype, config.model.seed) == (None, "auto", 0)
    assert (config.model.max_logprobs, config.model.generation_config) == (20, "auto")
    assert (config.cache.memory_utilization, config.cache.enable_prefix_caching) == (0.9, True)
    assert (config.scheduler.scheduling_policy, config.scheduler.deterministic) == ("fcfs", False)
    assert config.parallel.tensor_parallel_size == 1


def test_flat_names_land_in_their_group() -> None:
    config = EngineConfig.from_options(
        model="m", page_size=32, max_num_seqs=4, tensor_parallel_size=2, skip_warmup=True
    )
    assert config.model.model == "m"
    assert config.cache.page_size == 32
    assert config.scheduler.max_num_seqs == 4
    assert config.parallel.tensor_parallel_size == 2
    assert config.compilation.skip_warmup is True


@pytest.mark.parametrize(
    ("alias", "value", "group", "name"),
    [
        ("gpu_memory_utilization", 0.5, "cache", "memory_utilization"),
        ("device_memory_utilization", 0.5, "cache", "memory_utilization"),
        ("block_size", 16, "cache", "page_size"),
        ("num_gpu_blocks_override", 100, "cache", "num_pages"),
        ("tp", 4, "parallel", "tensor_parallel_size"),
        ("task", "embed", "model", "convert"),
        ("enforce_eager", True, "compilation", "skip_warmup"),
    ],
)
def test_an_alias_sets_its_option(alias: str, value: Any, group: str, name: str) -> None:
    assert getattr(getattr(EngineConfig.from_options(**{alias: value}), group), name) == value


def test_an_option_given_under_two_names_is_refused() -> None:
    with pytest.raises(ConfigError, match="'page_size' and 'block_size' are the same option; give one"):
        EngineConfig.from_options(page_size=16, block_size=16)


def test_an_unknown_option_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"unknown option 'max_modl_len'\. Did you mean 'max_model_len'\?"):
        EngineConfig.from_options(max_modl_len=5)
    with pytest.raises(ConfigError, match=r"unknown option 'gpu_memory_utilisation'\. Did you mean 'gpu_memory"):
        EngineConfig.from_options(gpu_memory_utilisation=0.5)
    with pytest.raises(ConfigError, match=r"unknown option 'zzz'\.$"):
        EngineConfig.from_options(zzz=1)


REFUSED: list[tuple[str, Any, str]] = [
    ("runner", "draft", "must be one of auto, generate, pooling, got 'draft'"),
    ("convert", "dance", "got 'dance'"),
    (
        "task",
        "dance",
        "task must be one of auto, none, generate, embed, embedding, classify, score, reward, got 'dance'",
    ),
    ("dtype", "float8", "must be one of auto, half, float16, bfloat16, float, float32, got 'float8'"),
    ("load_format", "npz", "must be one of auto, safetensors, pt, orbax, gguf, dummy, got 'npz'"),
    (
        "device",
        "neuron",
        "auto, cpu, gpu, cuda, tpu, got 'neuron'. What other devices need is in examples/docs/other-devices.md",
    ),
    ("scheduling_policy", "prioirty", "got 'prioirty'. Did you mean 'priority'?"),
    ("bucket_planner", "magic", "must be one of tokens, linear, exponential, explicit, got 'magic'"),
    ("seed", -1, "must be an integer of at least 0, got -1"),
    ("max_logprobs", -2, "must be an integer of at least -1, got -2"),
    ("page_size", 0, "must be an integer of at least 1, got 0"),
    ("block_size", 0, "block_size must be an integer of at least 1, got 0"),
    ("page_size", 16.0, "must be an integer of at least 1, got 16.0"),
    ("page_size", True, "must be an integer of at least 1, got True"),
    ("memory_utilization", 0, "must be a number in (0, 1], got 0"),
    ("memory_utilization", 1.01, "must be a number in (0, 1], got 1.01"),
    ("memory_utilization", float("nan"), "must be a number in (0, 1], got nan"),
    ("memory_utilization", "0.9", "must be a number in (0, 1], got '0.9'"),
    ("kv_cache_memory_bytes", 0, "must be an integer of at least 1, got 0"),
    ("num_pages", 1, "must be an integer of at least 2, got 1"),
    ("max_num_seqs", 0, "must be an integer of at least 1, got 0"),
    ("max_num_batched_tokens", -8, "must be an integer of at least 1, got -8"),
    ("long_prefill_token_threshold", -1, "must be an integer of at least 0, got -1"),
    ("tensor_parallel_size", 0, "must be an integer of at least 1, got 0"),
    ("compile_threads", 0, "must be an integer of at least 1, got 0"),
    ("skip_tokenizer_init", 1, "must be True or False, got 1"),
    ("deterministic", "yes", "must be True or False, got 'yes'"),
    ("hf_overrides", "{", "must be a JSON object"),
    ("hf_overrides", "[1]", "must map names to values, got [1]"),
    ("override_generation_config", 3, "must map names to values, got 3"),
]


@pytest.mark.parametrize(("name", "value", "message"), REFUSED)
def test_a_value_that_is_not_allowed_is_refused_with_what_is(name: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        EngineConfig.from_options(**{name: value})
    assert name in str(refused.value)
    assert message in str(refused.value)


def test_none_is_an_option_that_is_not_given() -> None:
    assert EngineConfig.from_options(**{spec.name: None for _, spec in iter_options(EngineConfig)}) == EngineConfig()


@pytest.mark.parametrize(
    ("name", "value"),
    [("attention_backend", "FLASHINFER"), ("attention_backend", "flash_attn"), ("load_format", "runai_streamer")],
)
def test_values_of_vllm_that_choose_nothing_here_leave_the_default(
    name: str, value: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert EngineConfig.from_options(**{name: value}) == EngineConfig()
    assert f"{name}={value!r} has no effect" in caplog.text


def test_mappings_are_read_from_json_and_copied() -> None:
    given = {"rope_theta": 1e4}
    config = EngineConfig.from_options(hf_overrides=given, override_generation_config='{"temperature": 0.5}')
    given["rope_theta"] = 0
    assert config.model.hf_overrides == {"rope_theta": 1e4}
    assert config.model.override_generation_config == {"temperature": 0.5}


def test_configuration_is_frozen_and_every_option_explains_itself() -> None:
    config = EngineConfig()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.model.seed = 1  # type: ignore[misc]
    names = [name for _, spec in iter_options(EngineConfig) for name in (spec.name, *spec.metadata["aliases"])]
    assert len(names) == len(set(names))
    for _, spec in iter_options(EngineConfig):
        assert len(spec.metadata["help"]) > 10


@pytest.mark.parametrize(
    ("options", "only"),
    [
        ({}, None),
        ({"runner": "auto", "convert": "none"}, None),
        ({"runner": "pooling"}, True),
        ({"runner": "pooling", "convert": "embed"}, True),
        ({"convert": "embed"}, True),
        ({"task": "embedding"}, True),
        ({"runner": "generate"}, False),
        ({"task": "generate"}, False),
    ],
)
def test_what_a_model_is_for(options: dict[str, str], only: bool | None) -> None:
    assert EngineConfig.from_options(**options).model.pools is only


@pytest.mark.parametrize(
    "options", [{"runner": "generate", "convert": "embed"}, {"runner": "pooling", "task": "generate"}]
)
def test_a_model_is_for_one_thing(options: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="contradict each other"):
        EngineConfig.from_options(**options)


def test_replicas_behind_one_server_do_not_serve_pages() -> None:
    config = {"kv_connector": "TcpConnector", "kv_connector_extra_config": {"secret_env": "PAGES_SECRET"}}
    for role in ("kv_producer", "kv_both"):
        with pytest.raises(ConfigError, match="data_parallel_size=2 starts several behind one server"):
            EngineConfig.from_options(data_parallel_size=2, kv_transfer_config={**config, "kv_role": role})
        EngineConfig.from_options(
            data_parallel_size=2, data_parallel_rank=1, kv_transfer_config={**config, "kv_role": role}
        )
    EngineConfig.from_options(data_parallel_size=2, kv_transfer_config={**config, "kv_role": "kv_consumer"})
