"""float8 as published checkpoints have it, DeepSeek's and FBGEMM's."""

from __future__ import annotations

from typing import Any

import pytest

from jaxengine.device.weights.formats.eight_bit import EightBit
from tests.device.models.config.quantization.reading import LAYER, check_plain, check_refused, read

FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [128, 128]}
ROUNDED = EightBit(dtype="float8_e4m3fn", round_rows=True)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (FP8, EightBit(dtype="float8_e4m3fn", block=(128, 128))),
        ({"quant_method": "fp8", "activation_scheme": "static"}, ROUNDED),
        ({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}, ROUNDED),
    ],
)
def test_published_configurations_are_read(config: dict[str, Any], expected: EightBit) -> None:
    found = read(config)
    assert (found.method, found.of(LAYER)) == (config["quant_method"], expected)


@pytest.mark.parametrize(
    ("changes", "plain", "kept"),
    [
        ({"modules_to_not_convert": ["model.layers.1"]}, "model.layers.1.mlp.up_proj", "model.layers.10.mlp.up_proj"),
        ({"ignored_layers": [LAYER]}, LAYER, LAYER.replace("3", "4")),
    ],
)
def test_modules_that_are_named_are_plain(changes: dict[str, Any], plain: str, kept: str) -> None:
    check_plain(read(FP8, **changes), plain, kept)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"activation_scheme": "none"}, "activation_scheme='none' is not built; known are dynamic, static"),
        (
            {"weight_block_size": [128]},
            r"weight_block_size must be outputs and inputs, such as \[128, 128\], got \[128\]",
        ),
    ],
)
def test_what_is_not_built_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    check_refused(FP8, changes, message)
