"""quantization_config, whatever the method: none, unknown ones, and a value that can be compared and hashed."""

from __future__ import annotations

import pytest

from jaxengine.device.models.config.quantization import METHODS, read_quantization
from tests.device.models.config.quantization.reading import check_refused, read

FP8 = {"quant_method": "fp8"}


def test_without_one_there_is_nothing() -> None:
    assert read_quantization({}) is None
    assert read_quantization({"quantization_config": None}) is None


def test_equal_configurations_are_equal_values() -> None:
    assert read(FP8) == read(FP8)
    assert hash(read(FP8)) == hash(read(FP8))
    assert read(FP8) != read(FP8, ignored_layers=["lm_head"])


def test_one_that_llm_compressor_once_wrote_is_read() -> None:
    assert read_quantization({"compression_config": FP8}) == read(FP8)


@pytest.mark.parametrize("method", METHODS)
def test_a_key_that_no_one_looked_at_is_refused(method: str) -> None:
    usual = {
        "gptq": {"bits": 4},
        "modelopt": {"quant_algo": "FP8"},
        "gguf": {"types": {"lm_head": "Q6_K"}},
        "compressed-tensors": {"config_groups": {"group_0": {"targets": ["Linear"]}}},
    }
    config = {"quant_method": method, **usual.get(method, {})}
    assert read(config).method == method
    check_refused(config, {"bit": 4}, "bit=4 is a key that it does not read")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"quant_method": "bitsandbytes"}, r"quant_method 'bitsandbytes'\), which is not built; known are awq, gptq"),
        ({"quant_method": "gptqq"}, "Did you mean 'gptq'"),
        ({"bits": 4}, "quant_method None"),
    ],
)
def test_a_method_that_is_not_built_is_refused_by_name(config: dict[str, object], message: str) -> None:
    check_refused(config, {}, message)
