"""Options of adapters."""

from __future__ import annotations

import pytest

from jaxengine.errors import ConfigError
from jaxengine.options.config import EngineConfig


def test_there_is_room_on_the_host_for_what_is_on_the_device() -> None:
    assert EngineConfig.from_options(enable_lora=True, max_loras=4).lora.most_on_host == 4
    assert EngineConfig.from_options(enable_lora=True, max_loras=4, max_cpu_loras=9).lora.most_on_host == 9
    with pytest.raises(ConfigError, match=r"max_cpu_loras=3 must be at least max_loras \(4\)"):
        EngineConfig.from_options(enable_lora=True, max_loras=4, max_cpu_loras=3)


@pytest.mark.parametrize(
    "option",
    [
        {"max_loras": 4},
        {"max_lora_rank": 64},
        {"max_cpu_loras": 8},
        {"lora_dtype": "float32"},
        {"lora_target_modules": ("q_proj",)},
    ],
    ids=lambda option: next(iter(option)),
)
def test_options_of_adapters_without_adapters_are_told(
    option: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    """And not refused, since vLLM takes them."""
    [(name, value)] = option.items()
    assert getattr(EngineConfig.from_options(**option, enable_lora=True).lora, name) == value
    assert not caplog.messages
    EngineConfig.from_options(**option)
    assert caplog.messages == [f"{name}={value!r} has no effect: without enable_lora there are no adapters"]


def test_of_defaults_nothing_is_told(caplog: pytest.LogCaptureFixture) -> None:
    assert not EngineConfig.from_options(max_loras=1, max_lora_rank=16, lora_dtype="auto").lora.enable_lora
    assert not caplog.messages


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_lora_rank": 12}, "must be one of 1, 8, 16, 32, 64, 128, 256, 320, 512, got 12"),
        ({"max_lora_rank": True}, "must be one of 1, 8"),
        ({"max_loras": 0}, "an integer of at least 1"),
        ({"lora_dtype": "int8"}, "one of auto, float16, bfloat16, float32"),
        ({"enable_tower_connector_lora": True}, "Adapters are for the layers that read text"),
        ({"lora_extra_vocab_size": 1}, "vLLM removed it too"),
    ],
    ids=str,
)
def test_what_is_not_allowed_is_refused_with_what_is(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        EngineConfig.from_options(**options)
    assert message in str(refused.value)
