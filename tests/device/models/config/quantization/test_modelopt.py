"""What ModelOpt writes."""

from __future__ import annotations

from jaxengine.device.weights.formats.plain import Plain
from tests.device.models.config.quantization.reading import LAYER, UP, check_plain, check_refused, read

MODELOPT = {"quant_method": "modelopt", "quantization": {"quant_algo": "FP8"}}


def test_published_configurations_are_read() -> None:
    found = read(MODELOPT)
    assert (found.method, found.of(LAYER)) == ("modelopt", Plain(stored="float8_e4m3fn", round_rows=True))


def test_modules_that_are_named_are_plain() -> None:
    found = read(MODELOPT, quantization={"quant_algo": "FP8", "exclude_modules": ["*.down_proj", "lm_head"]})
    check_plain(found, LAYER, UP)


def test_what_is_not_built_is_refused_by_name() -> None:
    message = "ModelOpt's quant_algo 'NVFP4' is not built; 'FP8' is"
    check_refused({"quant_method": "modelopt", "quant_algo": "NVFP4"}, {}, message)
