"""AWQ as published checkpoints have it."""

from __future__ import annotations

from typing import Any

import pytest

from jaxengine.device.weights.formats.awq import Awq
from tests.device.models.config.quantization.reading import LAYER, check_plain, check_refused, read

AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
NAMELESS = {"w_bit": 4, "q_group_size": 64, "zero_point": True, "version": "GEMM"}


@pytest.mark.parametrize(("config", "expected"), [(AWQ, Awq(128)), (NAMELESS, Awq(64))])
def test_published_configurations_are_read(config: dict[str, Any], expected: Awq) -> None:
    found = read(config)
    assert (found.method, found.of(LAYER)) == ("awq", expected)


def test_modules_that_are_named_are_plain() -> None:
    found = read(AWQ, modules_to_not_convert=["mlp.gate", "visual"])
    check_plain(found, "model.layers.0.mlp.gate", "model.layers.0.mlp.gate_proj")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bits": 8}, "bits=8 is not built; 4 is built. Use the model's bfloat16 checkpoint; quantization='int8'"),
        ({"version": "gemv"}, "version 'gemv' is not built; 'gemm' is built"),
        ({"group_sise": 64}, "group_sise=64 is a key that it does not read.*Did you mean 'group_size'"),
        ({"group_size": 0}, "group_size must be -1"),
    ],
)
def test_what_is_not_built_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    check_refused(AWQ, changes, message)
