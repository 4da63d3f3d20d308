"""What ModelOpt writes."""

from __future__ import annotations

import pytest

from jaxengine.device.weights.formats import nvfp4
from jaxengine.device.weights.formats.eight_bit import EightBit
from tests.device.models.config.quantization.reading import LAYER, UP, check_plain, check_refused, read

MODELOPT = {"quant_method": "modelopt", "quantization": {"quant_algo": "FP8"}}


def test_published_configurations_are_read() -> None:
    found = read(MODELOPT)
    assert (found.method, found.of(LAYER)) == ("modelopt", EightBit(dtype="float8_e4m3fn", round_rows=True))


def test_modules_that_are_named_are_plain() -> None:
    found = read(MODELOPT, quantization={"quant_algo": "FP8", "exclude_modules": ["*.down_proj", "lm_head"]})
    check_plain(found, LAYER, UP)


def test_what_is_not_built_is_refused_by_name() -> None:
    message = "ModelOpt's quant_algo 'W4A8_AWQ' is not built; 'FP8' and 'NVFP4' are"
    check_refused({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}, {}, message)


def test_activations_that_are_not_rounded_are_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "jaxengine"):
        found = read({"quant_method": "modelopt", "quantization": {"quant_algo": "NVFP4", "group_size": 16}})
    assert found.of(LAYER) == nvfp4.MODELOPT
    assert "only its matrices are of 4 bits (W4A16)" in caplog.text
