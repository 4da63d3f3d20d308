"""Quantised checkpoints from end to end: what they stand for, on any devices, converted too, and errors before device work."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from jaxengine.errors import CheckpointError, ConfigError
from jaxengine.tools.convert import convert
from tests.device.models.cases import Fixture
from tests.device.weights.formats.packers import FLOAT8, NVFP4, PACKED, W8A8
from tests.integration.engines import greedy, run, start, token_ids, write_checkpoint
from tests.integration.quantised import linear, prompt_scores, write_quantised
from tests.quick import slow_but

pytestmark = pytest.mark.usefixtures("quick_engines")

WAYS = {str(way): way for way in (*PACKED, *FLOAT8, *NVFP4)}
OFTEN = {"awq", "fp8 blocks", "nvfp4", "gptq desc_act", "w4a16 zeros", "fp8 channel"}


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("plain"), tie_word_embeddings=False)


@pytest.fixture(scope="module")
def prompts():
    rng = random.Random(3)
    return [[rng.randrange(3, 256) for _ in range(rng.randrange(1, 50))] for _ in range(5)]


def outputs(model, prompts, **options):
    engine = start(model, load_format="auto", **options)
    scores, tokens = prompt_scores(engine, prompts), token_ids(run(engine, prompts, greedy(10)))
    engine.close()
    return scores, tokens


@pytest.mark.parametrize("name", slow_but(WAYS, (), often=OFTEN))
def test_it_is_the_model_that_its_matrices_stand_for(name, plain, prompts, tmp_path):
    quantised, dequantised = write_quantised(plain, tmp_path, WAYS[name])
    scores, tokens = outputs(quantised, prompts)
    exact, expected = outputs(dequantised, prompts)
    np.testing.assert_allclose(scores, exact, atol=1e-3)
    assert tokens == expected
    assert np.abs(scores - outputs(plain, prompts)[0]).max() > 0.01


@pytest.mark.parametrize(
    "name", slow_but(["awq", "gptq desc_act", "fp8 blocks", "w8a16 channels", "nvfp4"], (), often={"gptq desc_act"})
)
def test_two_devices_give_the_tokens_of_one(name, plain, prompts, tmp_path):
    quantised, _ = write_quantised(plain, tmp_path, WAYS[name])
    scores, tokens = outputs(quantised, prompts)
    shared, of_two = outputs(quantised, prompts, tensor_parallel_size=2)
    np.testing.assert_allclose(shared, scores, atol=1e-4)
    assert of_two == tokens


@pytest.mark.slow
def test_int8_activations_are_those_of_the_option(plain, prompts, tmp_path):
    """The scales of the checkpoint are the ones that the option would have made: the results are the same to the last bit."""
    quantised, _ = write_quantised(plain, tmp_path, W8A8)
    scores, tokens = outputs(quantised, prompts)
    made, expected = outputs(plain, prompts, quantization="int8")
    np.testing.assert_array_equal(scores, made)
    assert tokens == expected


@pytest.mark.slow
def test_layers_that_are_named_are_left_as_they_are(plain, prompts, tmp_path, caplog):
    def quantised_ones(name):
        return linear(name) and "layers.0.mlp.down_proj" not in name and "layers.1.self_attn" not in name

    left = ["lm_head", "model.layers.0.mlp.down_proj", "re:.*layers[.]1[.]self_attn.*"]
    quantised, dequantised = write_quantised(plain, tmp_path, WAYS["w4a16"], of=quantised_ones, ignore=left)
    with caplog.at_level("INFO", "jaxengine"):
        scores, tokens = outputs(quantised, prompts)
    exact, expected = outputs(dequantised, prompts)
    np.testing.assert_allclose(scores, exact, atol=1e-3)
    assert tokens == expected
    assert (
        "matrices of layers by compressed-tensors: 9 in int4 but layers.0.mlp.down, layers.1.attention" in caplog.text
    )


def with_head(name):
    return linear(name) or name == "lm_head.weight"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "changes"),
    [("gptq", {"lm_head": True}), pytest.param("w4a16 zeros", {"ignore": []}, marks=pytest.mark.rare)],
)
@pytest.mark.parametrize("devices", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_head_is_kept_as_it_is_stored(name, changes, devices, plain, prompts, tmp_path, caplog):
    quantised, dequantised = write_quantised(plain, tmp_path, WAYS[name], of=with_head, **changes)
    with caplog.at_level("INFO", "jaxengine"):
        scores, tokens = outputs(quantised, prompts, tensor_parallel_size=devices)
    exact, expected = outputs(dequantised, prompts)
    np.testing.assert_allclose(scores, exact, atol=1e-3)
    assert tokens == expected
    assert "; head in int4; " in caplog.text


@pytest.mark.slow
def test_a_head_that_need_not_be_quantised_is_written_out(plain, prompts, tmp_path):
    quantised, dequantised = write_quantised(
        plain, tmp_path, WAYS["fp8 channel"], of=with_head, modules_to_not_convert=[]
    )
    scores, _ = outputs(quantised, prompts)
    np.testing.assert_allclose(scores, outputs(dequantised, prompts)[0], atol=1e-3)


@pytest.mark.slow
def test_a_plain_head_beside_quantised_layers_can_be_made_int8(plain, prompts, tmp_path):
    quantised, _ = write_quantised(plain, tmp_path, WAYS["awq"])
    exact, made = (outputs(quantised, prompts, **options)[0] for options in ({}, {"lm_head_dtype": "int8"}))
    assert 0 < np.abs(made - exact).mean() < 0.05 * exact.std()


def test_a_quantised_head_is_not_made_anew(plain, tmp_path):
    quantised, _ = write_quantised(plain, tmp_path, WAYS["gptq"], of=with_head, lm_head=True)
    with pytest.raises(ConfigError, match=r"lm_head_dtype='int8' was asked for, .* its head in int4 .gptq."):
        start(quantised, load_format="auto", lm_head_dtype="int8")


@pytest.mark.slow
def test_a_converted_checkpoint_keeps_the_numbers(plain, prompts, tmp_path):
    quantised, _ = write_quantised(plain, tmp_path, WAYS["awq"])
    convert(str(quantised), tmp_path / "converted")
    scores, tokens = outputs(quantised, prompts)
    converted, of_converted = outputs(tmp_path / "converted", prompts)
    np.testing.assert_array_equal(converted, scores)
    assert of_converted == tokens


def test_the_option_may_name_what_the_checkpoint_is(plain, prompts, tmp_path):
    quantised, _ = write_quantised(plain, tmp_path, WAYS["awq"])
    start(quantised, load_format="dummy", quantization="awq_marlin").close()
    with pytest.raises(ConfigError, match="'int8' was asked for, and the checkpoint is quantised already, in 'awq'"):
        start(quantised, load_format="auto", quantization="int8")
    with pytest.raises(ConfigError, match=r"'gptq' is how a checkpoint is stored, and config.json says of this one"):
        start(plain, load_format="auto", quantization="gptq")


def test_what_a_checkpoint_lacks_is_named_before_device_work(plain, tmp_path):
    quantised, _ = write_quantised(plain, tmp_path, WAYS["w4a16"])
    tensors = load_file(quantised / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight_scale"]
    save_file(tensors, quantised / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"layers.1.mlp.up_proj: has no weight_scale"):
        start(quantised, load_format="auto")


def test_a_matrix_that_is_not_quantised_though_it_should_be_is_named(plain, tmp_path):
    quantised, _ = write_quantised(
        plain, tmp_path, WAYS["fp8 channel"], of=lambda name: linear(name) and "up" not in name
    )
    with pytest.raises(CheckpointError, match=r"layers.\{0-1\}.mlp.up.scale: expected .*up_proj.weight.scale"):
        start(quantised, load_format="auto")


@pytest.mark.parametrize(
    ("case", "name", "options"),
    [
        pytest.param("qwen3-moe", "awq", {}, marks=pytest.mark.slow),
        pytest.param(
            "qwen3-moe", "gptq", {"tensor_parallel_size": 2, "enable_expert_parallel": True}, marks=pytest.mark.rare
        ),
        pytest.param("qwen3-moe", "fp8 blocks", {"tensor_parallel_size": 2}, marks=pytest.mark.rare),
        pytest.param("qwen3-moe", "w8a8", {}, marks=pytest.mark.rare),
        pytest.param("qwen3-moe", "modelopt nvfp4", {}, marks=pytest.mark.slow),
        pytest.param(
            "qwen3-moe", "nvfp4", {"tensor_parallel_size": 2, "enable_expert_parallel": True}, marks=pytest.mark.rare
        ),
        pytest.param("phi3", "gptq desc_act", {}, marks=pytest.mark.rare),
        pytest.param("gpt-neox", "gptq zeros", {}, marks=pytest.mark.rare),
    ],
)
def test_experts_and_matrices_that_are_cut(case, name, options, tmp_path):
    """Of each expert, and of queries, keys and values in one: the rows are cut, whatever is kept of them."""
    fixture = Fixture.load(case)
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "config.json").write_text(json.dumps({**fixture.config, "torch_dtype": "float32"}))
    save_file(fixture.tensors, tmp_path / "plain" / "model.safetensors")
    way = W8A8 if name == "w8a8" else WAYS[name]
    quantised, dequantised = write_quantised(tmp_path / "plain", tmp_path, way, of=matrix_of_layer)
    prompts = [[3, 17, 60, 8, 41, 2, 90], [77, 1, 14], [42, 9]]
    allowed = 0.3 if name == "w8a8" else 1e-3  # activations are rounded
    scores, exact = outputs(quantised, prompts, **options)[0], outputs(dequantised, prompts)[0]
    np.testing.assert_allclose(scores, exact, atol=allowed)


def matrix_of_layer(name):
    return name.endswith(".weight") and ".layers." in name and not any(word in name for word in ("norm", ".gate."))
