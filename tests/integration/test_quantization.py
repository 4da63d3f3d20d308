"""`quantization="int8"` from end to end: near the plain engine, the same in any company and on any devices, from any source."""

from __future__ import annotations

import random

import numpy as np
import pytest

from jaxengine import SamplingParams
from jaxengine.device.weights.checkpoint import OrbaxCheckpoint, open_checkpoint
from jaxengine.errors import CheckpointError, ConfigError
from jaxengine.options.config import EngineConfig
from jaxengine.tools.compile_ahead import compile_ahead
from jaxengine.tools.convert import convert
from tests.integration.engines import SMALL, greedy, run, start, token_ids, write_checkpoint, write_config
from tests.quick import slow_but

LOADED = {"load_format": "auto", "quantization": "int8"}


pytestmark = pytest.mark.usefixtures("quick_engines")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("model"), tie_word_embeddings=False)


@pytest.fixture(scope="module")
def prompts():
    rng = random.Random(3)
    return [[rng.randrange(3, 256) for _ in range(rng.randrange(1, 50))] for _ in range(7)]


@pytest.fixture(scope="module")
def expected(model, prompts):
    engine = start(model, **LOADED)
    tokens = token_ids(run(engine, prompts, greedy(10)))
    engine.close()
    return tokens


def scores(engine, prompts):
    """Log probabilities of the prompts' tokens but the first."""
    asked = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0, detokenize=False)
    outputs = run(engine, prompts, asked)
    return np.array(
        [
            position[token].logprob
            for output, prompt in zip(outputs, prompts, strict=True)
            for position, token in zip(output.prompt_logprobs[1:], prompt[1:], strict=True)
        ]
    )


def test_log_probabilities_are_near_the_plain_model(model, prompts):
    found = {}
    for quantization in (None, "int8"):
        engine = start(model, load_format="auto", quantization=quantization)
        found[quantization] = scores(engine, prompts)
        assert engine.compile_counter.count == 0
        engine.close()
    error = np.abs(found["int8"] - found[None])
    assert 0 < error.mean() < 0.05 * found[None].std()
    assert error.max() < 0.4 * found[None].std()


def test_a_request_alone_is_the_request_in_company(model, prompts, expected):
    engine = start(model, **LOADED, enable_prefix_caching=False)
    alone = [token_ids(run(engine, [prompt], greedy(10)))[0] for prompt in prompts]
    engine.close()
    assert alone == expected


def test_log_probabilities_are_the_same_to_the_last_bit_in_any_company(model, prompts):
    engine = start(model, **LOADED, enable_prefix_caching=False)
    together = scores(engine, prompts)
    alone = np.concatenate([scores(engine, [prompt]) for prompt in prompts])
    engine.close()
    np.testing.assert_array_equal(together, alone)


@pytest.mark.parametrize("size", slow_but([2, 8], (), often={8}))
def test_any_number_of_devices_gives_the_tokens_of_one(model, prompts, expected, size):
    engine = start(model, **LOADED, tensor_parallel_size=size)
    assert token_ids(run(engine, prompts, greedy(10))) == expected
    engine.close()


@pytest.mark.slow
def test_random_weights_are_the_plain_ones_quantised(tmp_path, prompts):
    model = write_config(tmp_path)
    plain, int8 = start(model), start(model, quantization="int8")
    error = np.abs(scores(plain, prompts) - scores(int8, prompts))
    spread = scores(plain, prompts).std()
    plain.close()
    int8.close()
    assert 0 < error.mean() < 0.05 * spread


@pytest.mark.slow
def test_a_converted_checkpoint_keeps_the_integers(model, prompts, expected, tmp_path):
    convert(str(model), tmp_path / "int8", quantization="int8")
    stored = open_checkpoint(tmp_path / "int8")
    assert isinstance(stored, OrbaxCheckpoint)
    assert {dtype for _, dtype in stored.parameters.values()} == {"int8", "float32"}
    engine = start(tmp_path / "int8", **LOADED)
    assert token_ids(run(engine, prompts, greedy(10))) == expected
    engine.close()
    with pytest.raises(CheckpointError, match=r"(?s)as it was converted with --quantization.*scale"):
        start(tmp_path / "int8", load_format="auto")


@pytest.mark.slow
def test_programs_compiled_ahead_bring_the_option(model, prompts, expected, tmp_path):
    shapes = {name: value for name, value in SMALL.items() if name not in ("load_format", "skip_tokenizer_init")}
    given = EngineConfig.from_options(model=str(model), quantization="int8", xla_cache_path="off", **shapes)
    compile_ahead(given, "local", tmp_path / "bundle")
    engine = start(model, load_format="auto", bundle=str(tmp_path / "bundle"))
    assert {str(struct.dtype) for struct in engine.space.parameters.values()} == {"int8", "float32"}
    assert {record.origin for record in engine.programs} == {"bundle"}
    assert token_ids(run(engine, prompts, greedy(10))) == expected
    engine.close()


def test_an_unknown_name_says_what_there_is(tmp_path):
    with pytest.raises(
        ConfigError, match="quantization must be one of int8, int4, int4_g32, fp8, or left out, got 'acq'"
    ):
        start(write_config(tmp_path), quantization="acq")


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "of its own"])
def with_head(request, tmp_path_factory):
    """A model, and what its log calls its head."""
    named = "head and embedding, which are one, in" if request.param else "head in"
    return write_checkpoint(tmp_path_factory.mktemp("model"), tie_word_embeddings=request.param), named


@pytest.mark.slow
@pytest.mark.parametrize(("head", "near"), [("int8", 0.05), ("int4_g32", 0.3)])
def test_a_quantised_head_is_near_the_plain_one_and_the_same_in_any_company(with_head, prompts, caplog, head, near):
    model, named = with_head
    plain = start(model, load_format="auto")
    exact = scores(plain, prompts)
    plain.close()
    with caplog.at_level("INFO", "jaxengine"):
        engine = start(model, load_format="auto", lm_head_dtype=head, enable_prefix_caching=False)
    found = scores(engine, prompts)
    np.testing.assert_array_equal(found, np.concatenate([scores(engine, [prompt]) for prompt in prompts]))
    assert engine.compile_counter.count == 0
    engine.close()
    assert 0 < np.abs(found - exact).mean() < near * exact.std()
    assert f"no matrices of layers; {named} {head.removesuffix('_g32')}; " in caplog.text


@pytest.mark.parametrize("size", slow_but([2, 8], (), often={8}))
def test_devices_share_a_head_in_int8(with_head, prompts, size):
    """The last bit of a hidden state, in which devices differ, can send a number to the next integer."""
    found = []
    for devices in (1, size):
        engine = start(with_head[0], load_format="auto", lm_head_dtype="int8", tensor_parallel_size=devices)
        found.append((scores(engine, prompts), token_ids(run(engine, prompts, greedy(10)))))
        engine.close()
    np.testing.assert_allclose(found[0][0], found[1][0], atol=0.02)
    assert found[0][1] == found[1][1]


@pytest.mark.slow
def test_a_converted_checkpoint_keeps_the_head(with_head, prompts, tmp_path):
    model, _ = with_head
    options = {"load_format": "auto", "quantization": "int4", "lm_head_dtype": "int8"}
    convert(str(model), tmp_path / "int8", quantization="int4", lm_head_dtype="int8")
    expected, found = (start(path, **options) for path in (model, tmp_path / "int8"))
    np.testing.assert_array_equal(scores(found, prompts), scores(expected, prompts))
    expected.close()
    found.close()


def test_a_model_without_a_head_has_none_in_int8(model):
    with pytest.raises(ConfigError, match="lm_head_dtype='int8' was asked for, and this model generates nothing"):
        start(model, load_format="auto", runner="pooling", lm_head_dtype="int8")
