"""GPTQ as published checkpoints have it."""

from __future__ import annotations

from typing import Any

import pytest

from jaxengine.device.weights.formats.gptq import Gptq
from tests.device.models.config.quantization.reading import LAYER, UP, check_plain, check_refused, read

GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": True, "sym": True, "static_groups": False}


def usual(bits: int = 4, *, group: int | None = 128, zero_offset: int = 1) -> Gptq:
    return Gptq(bits=bits, group=group, symmetric=True, act_order=True, zero_offset=zero_offset)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, usual()),
        ({"bits": 8, "group_size": -1, "checkpoint_format": "gptq_v2"}, usual(8, group=None, zero_offset=0)),
    ],
)
def test_published_configurations_are_read(changes: dict[str, Any], expected: Gptq) -> None:
    found = read(GPTQ, **changes)
    assert (found.method, found.of(LAYER)) == ("gptq", expected)


@pytest.mark.parametrize(
    ("changes", "kept"),
    [
        ({"dynamic": {r"-:.*\.down_proj": {}}}, UP),
        ({"modules_in_block_to_quantize": [["self_attn.q_proj"]]}, "model.layers.0.self_attn.q_proj"),
    ],
)
def test_modules_that_are_named_are_plain(changes: dict[str, Any], kept: str) -> None:
    check_plain(read(GPTQ, **changes), LAYER, kept)


def test_layers_may_have_ways_of_their_own() -> None:
    found = read(GPTQ, dynamic={r"+:.*\.down_proj": {"bits": 8, "group_size": 64}})
    assert found.of(LAYER) == usual(8, group=64)
    assert found.of(UP) == usual()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bits": 3}, "bits=3 is not built; 4 and 8 are built"),
        ({"checkpoint_format": "marlin"}, "checkpoint_format 'marlin' is not built"),
        ({"modules_to_not_convert": "lm_head"}, "a list of modules must be a list of names, got 'lm_head'"),
    ],
)
def test_what_is_not_built_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    check_refused(GPTQ, changes, message)
