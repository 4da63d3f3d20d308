"""What llm-compressor writes."""

from __future__ import annotations

from typing import Any

import pytest

from jaxengine.device.weights.formats.packed import Packed
from tests.device.models.config.quantization.reading import LAYER, UP, check_plain, check_refused, read

WEIGHTS = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 128, "dynamic": False}
W4A16: dict[str, Any] = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "quantization_status": "compressed",
    "global_compression_ratio": 1.89,
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": WEIGHTS, "input_activations": None}},
    "ignore": ["lm_head"],
}


def packed(bits: int, group: int | None) -> Packed:
    return Packed(bits=bits, group=group, symmetric=True, act_order=False)


def test_published_configurations_are_read() -> None:
    found = read(W4A16)
    assert (found.method, found.of(LAYER)) == ("compressed-tensors", packed(4, 128))


@pytest.mark.parametrize(("ignore", "kept"), [(LAYER, LAYER + "2"), ("re:.*down_proj$", UP)])
def test_modules_that_are_named_are_plain(ignore: str, kept: str) -> None:
    check_plain(read(W4A16, ignore=[ignore]), LAYER, kept)


def test_layers_may_have_ways_of_their_own() -> None:
    by_channel = {**WEIGHTS, "num_bits": 8, "strategy": "channel", "group_size": None}
    eight = {"targets": ["re:.*down_proj"], "weights": by_channel}
    found = read(W4A16, config_groups={**W4A16["config_groups"], "group_1": eight})
    assert found.of(LAYER) == packed(8, None)
    assert found.of(UP) == packed(4, 128)


def group(**changes: Any) -> dict[str, Any]:
    return {"config_groups": {"group_0": {"targets": ["Linear"], "weights": {**WEIGHTS, **changes}}}}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"format": "nvfp4-pack-quantized"},
            "int4 with strategy 'group' in format 'nvfp4-pack-quantized' is not built",
        ),
        (group(num_bits=4, type="float"), "float4 with strategy"),
        ({"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity_config 'sparse-24-bitmask' is not built"),
        ({"transform_config": {"R1": {}}}, "transform_config"),
        ({"config_groups": {}}, "config_groups must be an object with a group"),
        (group(new=1), "weights: new=1 is a key"),
    ],
)
def test_what_is_not_built_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    check_refused(W4A16, changes, message)
