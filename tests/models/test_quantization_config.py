"""quantization_config as published checkpoints have it: what it says of each matrix, and what is refused by name."""

from __future__ import annotations

import copy

import pytest

from jaxengine.errors import ConfigError
from jaxengine.models.quantization_config import read_quantization
from jaxengine.weights.formats.awq import Awq
from jaxengine.weights.formats.gptq import Gptq
from jaxengine.weights.formats.packed import Packed
from jaxengine.weights.formats.plain import Plain

AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": True, "sym": True, "static_groups": False}
WEIGHTS = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 128, "dynamic": False}
W4A16 = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "quantization_status": "compressed",
    "global_compression_ratio": 1.89,
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": WEIGHTS, "input_activations": None}},
    "ignore": ["lm_head"],
}
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [128, 128]}
LAYER = "model.layers.3.mlp.down_proj"


def read(config, **changes):
    return read_quantization({"quantization_config": {**copy.deepcopy(config), **changes}})


def usual(bits=4, **changes):
    values = {"bits": bits, "group": 128, "symmetric": True, "act_order": True, "zero_offset": 1}
    return Gptq(**{**values, **changes})


@pytest.mark.parametrize(
    ("config", "method", "expected"),
    [
        (AWQ, "awq", Awq(128)),
        ({"w_bit": 4, "q_group_size": 64, "zero_point": True, "version": "GEMM"}, "awq", Awq(64)),
        (GPTQ, "gptq", usual()),
        (
            {**GPTQ, "bits": 8, "group_size": -1, "checkpoint_format": "gptq_v2"},
            "gptq",
            usual(8, group=None, zero_offset=0),
        ),
        (W4A16, "compressed-tensors", Packed(bits=4, group=128, symmetric=True, act_order=False)),
        (FP8, "fp8", Plain(stored="float8_e4m3fn", block=(128, 128))),
        ({"quant_method": "fp8", "activation_scheme": "static"}, "fp8", Plain(stored="float8_e4m3fn", round_rows=True)),
        (
            {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0},
            "fbgemm_fp8",
            Plain(stored="float8_e4m3fn", round_rows=True),
        ),
        (
            {"quant_method": "modelopt", "quantization": {"quant_algo": "FP8"}},
            "modelopt",
            Plain(stored="float8_e4m3fn", round_rows=True),
        ),
    ],
)
def test_published_configurations_are_read(config, method, expected):
    found = read(config)
    assert (found.method, found.of(LAYER)) == (method, expected)
    assert found == read(config)
    assert hash(found) == hash(read(config))


def test_without_one_there_is_nothing():
    assert read_quantization({}) is None
    assert read_quantization({"quantization_config": None}) is None


@pytest.mark.parametrize(
    ("config", "changes", "plain", "kept"),
    [
        (
            AWQ,
            {"modules_to_not_convert": ["mlp.gate", "visual"]},
            "model.layers.0.mlp.gate",
            "model.layers.0.mlp.gate_proj",
        ),
        (
            FP8,
            {"modules_to_not_convert": ["model.layers.1"]},
            "model.layers.1.mlp.up_proj",
            "model.layers.10.mlp.up_proj",
        ),
        (FP8, {"ignored_layers": [LAYER]}, LAYER, LAYER.replace("3", "4")),
        (W4A16, {"ignore": [LAYER]}, LAYER, LAYER + "2"),
        (W4A16, {"ignore": ["re:.*down_proj$"]}, LAYER, LAYER.replace("down", "up")),
        (GPTQ, {"dynamic": {r"-:.*\.down_proj": {}}}, LAYER, LAYER.replace("down", "up")),
        (GPTQ, {"modules_in_block_to_quantize": [["self_attn.q_proj"]]}, LAYER, "model.layers.0.self_attn.q_proj"),
        (
            {
                "quant_method": "modelopt",
                "quantization": {"quant_algo": "FP8", "exclude_modules": ["*.down_proj", "lm_head"]},
            },
            {},
            LAYER,
            LAYER.replace("down", "up"),
        ),
    ],
)
def test_modules_that_are_named_are_plain(config, changes, plain, kept):
    found = read(config, **changes)
    assert found.of(plain) is None
    assert found.of(kept) is not None
    assert found.of("elsewhere", plain) is None


def test_layers_may_have_ways_of_their_own():
    found = read(GPTQ, dynamic={r"+:.*\.down_proj": {"bits": 8, "group_size": 64}})
    assert found.of(LAYER) == usual(8, group=64)
    assert found.of("model.layers.0.mlp.up_proj") == usual()
    eight = {
        "targets": ["re:.*down_proj"],
        "weights": {**WEIGHTS, "num_bits": 8, "strategy": "channel", "group_size": None},
    }
    found = read(W4A16, config_groups={**W4A16["config_groups"], "group_1": eight})
    assert found.of(LAYER) == Packed(bits=8, group=None, symmetric=True, act_order=False)
    assert found.of("model.layers.0.mlp.up_proj") == Packed(bits=4, group=128, symmetric=True, act_order=False)


def group(**changes):
    return {"config_groups": {"group_0": {"targets": ["Linear"], "weights": {**WEIGHTS, **changes}}}}


@pytest.mark.parametrize(
    ("config", "changes", "message"),
    [
        (
            {"quant_method": "bitsandbytes"},
            {},
            r"quant_method 'bitsandbytes'\), which is not built; known are awq, gptq",
        ),
        ({"quant_method": "gptqq"}, {}, "Did you mean 'gptq'"),
        ({"bits": 4}, {}, "quant_method None"),
        (AWQ, {"bits": 8}, "bits=8 is not built; 4 is built. Use the model's bfloat16 checkpoint; quantization='int8'"),
        (AWQ, {"version": "gemv"}, "version 'gemv' is not built; 'gemm' is built"),
        (AWQ, {"group_sise": 64}, "group_sise=64 is a key that it does not read.*Did you mean 'group_size'"),
        (AWQ, {"group_size": 0}, "group_size must be -1"),
        (GPTQ, {"bits": 3}, "bits=3 is not built; 4 and 8 are built"),
        (GPTQ, {"checkpoint_format": "marlin"}, "checkpoint_format 'marlin' is not built"),
        (GPTQ, {"modules_to_not_convert": "lm_head"}, "a list of modules must be a list of names, got 'lm_head'"),
        (FP8, {"activation_scheme": "none"}, "activation_scheme='none' is not built; known are dynamic, static"),
        (
            FP8,
            {"weight_block_size": [128]},
            r"weight_block_size must be outputs and inputs, such as \[128, 128\], got \[128\]",
        ),
        (
            W4A16,
            {"format": "nvfp4-pack-quantized"},
            "int4 with strategy 'group' in format 'nvfp4-pack-quantized' is not built",
        ),
        (W4A16, group(num_bits=4, type="float"), "float4 with strategy"),
        (
            W4A16,
            {"sparsity_config": {"format": "sparse-24-bitmask"}},
            "sparsity_config 'sparse-24-bitmask' is not built",
        ),
        (W4A16, {"transform_config": {"R1": {}}}, "transform_config"),
        (W4A16, {"config_groups": {}}, "config_groups must be an object with a group"),
        (W4A16, group(new=1), "weights: new=1 is a key"),
        (
            {"quant_method": "modelopt", "quant_algo": "NVFP4"},
            {},
            "ModelOpt's quant_algo 'NVFP4' is not built; 'FP8' is",
        ),
    ],
)
def test_what_is_not_built_is_refused_by_name(config, changes, message):
    with pytest.raises(ConfigError, match=rf"(?s){message}"):
        read(config, **changes)
