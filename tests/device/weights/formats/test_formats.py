"""Each format's tensors, written bit by bit, are read as what they stand for; others are refused by name."""

from __future__ import annotations

import json

import numpy as np
import pytest

from jaxengine.device.models.config.quantization import read_quantization
from jaxengine.device.weights.checkpoint import open_checkpoint
from jaxengine.device.weights.unpacked import UnpackedCheckpoint
from jaxengine.errors import CheckpointError
from tests.device.weights.files import write_single
from tests.device.weights.formats.packers import FLOAT4, FLOAT8, NVFP4, PACKED, W8A8

WAYS = (*PACKED, *FLOAT8, *NVFP4, W8A8)
MATRIX = np.random.default_rng(0).normal(size=(48, 64)).astype(np.float32)


def opened(way, tmp_path, *, dense=False, **changes):
    tensors = {**way.write(MATRIX).tensors, **changes}
    stored = {f"layer.q.{name}": tensor for name, tensor in tensors.items() if tensor is not None}
    stored["layer.norm.weight"] = np.ones(64, np.float32)
    formats = read_quantization({"quantization_config": json.loads(json.dumps(way.config))})
    return UnpackedCheckpoint(open_checkpoint(write_single(tmp_path, stored)), formats.of, dense=lambda module: dense)


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_matrix_is_what_its_tensors_stand_for(way, tmp_path):
    checkpoint = opened(way, tmp_path)
    parts = {name.removeprefix("layer.q."): checkpoint.view(name) for name in checkpoint.tensors if ".q." in name}
    for name, part in parts.items():
        stored = checkpoint.tensors[f"layer.q.{name}"]
        assert (stored.shape, stored.dtype) == (part.shape, part.dtype) or name != "weight"
        assert stored.shape == part.shape
    group = -(-64 // parts["weight.scale"].shape[1])
    wide = {
        name: np.repeat(part.astype(np.float32), group, axis=1)[:, :64]
        for name, part in parts.items()
        if part.ndim == 2
    }
    if way in NVFP4:
        numbers = np.asarray([*FLOAT4, *(-number for number in FLOAT4)])[parts["weight"]]
    else:
        numbers = parts["weight"].astype(np.float32) - (8 if parts["weight"].dtype == np.uint8 else 0)
    matrix = (numbers - wide.get("weight.zero", 0)) * wide["weight.scale"] * parts.get("weight.tensor_scale", 1)
    expected = way.write(MATRIX).matrix
    if "weight.order" in parts:
        expected = expected[:, parts["weight.order"]]
    np.testing.assert_allclose(matrix, expected, rtol=1e-6, atol=1e-7)
    assert np.abs(expected).std() > 0.5


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_what_is_no_matrix_of_a_layer_is_written_out(way, tmp_path):
    checkpoint = opened(way, tmp_path, dense=True)
    assert set(checkpoint.tensors) == {"layer.q.weight", "layer.norm.weight"}
    np.testing.assert_allclose(checkpoint.view("layer.q.weight"), way.write(MATRIX).matrix, rtol=1e-6, atol=1e-7)
    checkpoint.release("layer.q.weight")


def way(name):
    return next(way for way in WAYS if way.name == name)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("awq", {"scales": None}, "layer.q: has no scales"),
        ("awq", {"qzeros": np.zeros((1, 6), np.int32)}, r"layer.q: qzeros is \[1, 6\], and should be \[2, 6\]"),
        ("awq", {"scales": np.ones((2, 48), np.int8)}, "scales is of I8, and should be F16 or BF16 or F32"),
        ("awq", {"qweight": np.zeros((60, 6), np.int32)}, "has 60 inputs, which are no multiple of group_size 32"),
        ("gptq", {"qweight": np.zeros((8, 48), np.int64)}, "qweight is of I64"),
        ("gptq", {"scales": np.ones((48, 2), np.float16)}, r"scales is \[48, 2\], and should be \[2, 48\]"),
        ("gptq desc_act", {"g_idx": None}, "has no g_idx"),
        ("gptq desc_act", {"g_idx": np.zeros(63, np.int32)}, r"g_idx is \[63\], and should be \[64\]"),
        (
            "w4a16",
            {"weight_scale": np.ones((48, 1), np.float16)},
            r"weight_scale is \[48, 1\], and should be \[48, 2\]",
        ),
        ("w4a16 zeros", {"weight_zero_point": None}, "has no weight_zero_point"),
        ("fp8 tensor", {"weight_scale": np.ones(3, np.float32)}, r"weight_scale is \[3\], and should be \[48, 1\]"),
        ("fp8 blocks", {"weight_scale_inv": np.ones((2, 3), np.float32)}, r"is \[2, 3\], and should be \[2, 2\]"),
        ("fp8 blocks", {"weight": np.ones((48, 64), np.int8)}, "weight is of I8, and should be F8_E4M3"),
        ("w8a8", {"weight_scale": None}, "has no weight_scale"),
        ("nvfp4", {"weight_global_scale": None}, "has no weight_global_scale"),
        (
            "nvfp4",
            {"weight_packed": np.zeros((48, 20), np.uint8)},
            "has 40 inputs, which are no multiple of group_size 16",
        ),
        (
            "modelopt nvfp4",
            {"weight_scale": np.ones((48, 4), np.float16)},
            "weight_scale is of F16, and should be F8_E4M3",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_named_before_any_is_read(name, changes, message, tmp_path):
    with pytest.raises(CheckpointError, match=message):
        opened(way(name), tmp_path, **changes)


@pytest.mark.parametrize(
    ("name", "part", "changes", "message"),
    [
        ("gptq", "weight.scale", {"qzeros": np.zeros((2, 6), np.int32)}, "qzeros are not all in the middle.*sym"),
        ("gptq", "weight", {"g_idx": np.arange(64, dtype=np.int32) % 2}, "not in the order of inputs.*desc_act=false"),
        ("gptq desc_act", "weight", {"g_idx": np.zeros(64, np.int32)}, "does not give each group 32 inputs"),
        ("w4a16 actorder", "weight", {"weight_g_idx": np.zeros(64, np.int32)}, "does not give each group 32 inputs"),
    ],
)
def test_tensors_that_say_otherwise_than_the_configuration_are_named(name, part, changes, message, tmp_path):
    checkpoint = opened(way(name), tmp_path, **changes)
    with pytest.raises(CheckpointError, match=f"layer.q: .*{message}"):
        checkpoint.view(f"layer.q.{part}")
