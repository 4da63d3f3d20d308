"""Scales of quantised caches are found under every name that they are published with, and a wrong one is named."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from jaxengine.device.weights.cache_scales import WithoutCacheScales, read_cache_scales
from jaxengine.device.weights.checkpoint import open_checkpoint
from jaxengine.errors import CheckpointError
from tests.device.weights.files import write_single

CONFIG = SimpleNamespace(num_kv_heads=2, head_dim=4)
SHAPES = {f"layers.{layer}.attention.{name}": 4 for layer in range(2) for name in ("k_scale", "v_scale")}


def checkpoint(directory, names, value=0.5, **changes):
    stored = {"model.layers.0.self_attn.k_proj.weight": np.ones((8, 8), np.float32)}
    for layer in range(2):
        for number, name in enumerate(names):
            stored[f"model.layers.{layer}.self_attn.{name}"] = np.full((), value + layer + number, np.float32)
    stored |= {name: np.asarray(tensor, np.float32) for name, tensor in changes.items()}
    return open_checkpoint(write_single(directory, {name: x for name, x in stored.items() if x.size}))


@pytest.mark.parametrize(
    ("names", "values"),
    [
        (("k_scale", "v_scale"), 1.5),
        (("attn.k_scale", "attn.v_scale", "attn.q_scale", "attn.prob_scale"), 1.5),
        (("k_proj.k_scale", "v_proj.v_scale"), 1.5),
        (("k_proj.output_scale", "v_proj.output_scale"), 1.5),
        (("kv_scale",), 0.5),
    ],
)
def test_scales_are_found_by_their_names(tmp_path, names, values):
    opened = checkpoint(tmp_path, names)
    found = read_cache_scales(opened, SHAPES, CONFIG)
    assert {path: scales.tolist() for path, scales in found.items()} == {
        f"layers.{layer}.attention.{name}": [first + layer] * 4
        for layer in range(2)
        for name, first in (("k_scale", 0.5), ("v_scale", values))
    }
    assert list(WithoutCacheScales(opened).tensors) == ["model.layers.0.self_attn.k_proj.weight"]


def test_each_head_may_have_its_own_and_is_repeated_with_it(tmp_path):
    by_head = {"model.layers.1.self_attn.v_scale": [[[2.0]], [[3.0]]]}
    found = read_cache_scales(checkpoint(tmp_path, ("k_scale", "v_scale"), **by_head), SHAPES, CONFIG)
    assert found["layers.1.attention.v_scale"].tolist() == [2, 2, 3, 3]


def test_a_checkpoint_without_any_has_none(tmp_path):
    assert read_cache_scales(checkpoint(tmp_path, ()), SHAPES, CONFIG) == {}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ([], r"(?s)missing beside others.*layers.1.attention.v_scale"),
        ([1.0, 2.0, 3.0], r"(?s)wrong shape.*model.layers.1.self_attn.v_scale: \[3\] for 2 heads"),
        (-1.0, r"(?s)no positive numbers.*model.layers.1.self_attn.v_scale"),
        (np.nan, r"(?s)no positive numbers.*model.layers.1.self_attn.v_scale"),
    ],
)
def test_a_scale_that_cannot_be_is_named(tmp_path, wrong, message):
    opened = checkpoint(tmp_path, ("k_scale", "v_scale"), **{"model.layers.1.self_attn.v_scale": wrong})
    with pytest.raises(CheckpointError, match=message):
        read_cache_scales(opened, SHAPES, CONFIG)
