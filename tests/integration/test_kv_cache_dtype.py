"""`kv_cache_dtype` from end to end: near the plain cache, the same in any company and on any devices, scales of any origin."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from jaxengine.errors import CheckpointError, ConfigError
from jaxengine.options.config import EngineConfig
from jaxengine.startup.model_plan import plan_model
from tests.device.models.cases import Fixture
from tests.integration.engines import greedy, run, start, token_ids, write_checkpoint, write_config
from tests.integration.quantised import prompt_scores
from tests.quick import rare_but
from tests.targets.tpu import available

pytestmark = pytest.mark.usefixtures("quick_engines")

ALL = ("int8", "fp8", "fp8_e5m2", "bfloat16")
ERRORS = {"int8": 0.03, "fp8": 0.08, "fp8_e5m2": 0.15, "bfloat16": 0.01}
"""Mean error of a log probability, over the spread of all."""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("model"), tie_word_embeddings=False)


@pytest.fixture(scope="module")
def prompts():
    rng = random.Random(3)
    stem = [rng.randrange(3, 256) for _ in range(20)]
    return [stem[: rng.randrange(20)] + [rng.randrange(3, 256) for _ in range(rng.randrange(1, 30))] for _ in range(7)]


def parameters(engine):
    runner = engine.core._runner
    return dict(zip(runner.space.parameters, runner.parameters, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("kv_cache_dtype", ALL)
def test_near_the_plain_cache_and_alone_as_in_company(model, prompts, kv_cache_dtype):
    plain = start(model, load_format="auto")
    expected, plain_bytes = prompt_scores(plain, prompts), plain.core._runner.cache.pages[0].nbytes
    plain.close()
    engine = start(model, load_format="auto", kv_cache_dtype=kv_cache_dtype)
    error = np.abs(prompt_scores(engine, prompts) - expected).mean() / expected.std()
    assert 0 < error < ERRORS[kv_cache_dtype]
    assert engine.core._runner.cache.pages[0].nbytes * (2 if kv_cache_dtype == "bfloat16" else 4) == plain_bytes
    together = token_ids(run(engine, prompts, greedy(10)))  # from the pages of prefixes
    assert [token_ids(run(engine, [prompt], greedy(10)))[0] for prompt in prompts] == together
    engine.ledger.reset_prefix_cache()
    assert [token_ids(run(engine, [prompt], greedy(10)))[0] for prompt in prompts] == together
    assert engine.compile_counter.count == 0
    engine.close()


@pytest.mark.rare
@pytest.mark.parametrize("kv_cache_dtype", ALL[:3])
def test_every_way_of_running_gives_the_same_tokens(model, prompts, kv_cache_dtype):
    found = []
    for changes in (
        {},
        {"enable_prefix_caching": False, "buckets": ("2x8", "3x32", "2x1", "8x1"), "max_num_seqs": 8},
        {"num_pages": 34},  # 33 pages of 8 tokens: some are preempted
        {"tensor_parallel_size": 2},
        {"tensor_parallel_size": 8},  # more devices than KV heads
    ):
        engine = start(model, load_format="auto", kv_cache_dtype=kv_cache_dtype, **changes)
        found.append(token_ids(run(engine, prompts, greedy(24))))
        engine.ledger.check()
        engine.close()
    assert found == [found[0]] * len(found)


@pytest.mark.slow
@pytest.mark.parametrize("kv_cache_dtype", rare_but(["int8", "fp8"], {"int8"}))
@pytest.mark.parametrize("case", rare_but(["deepseek-v3", "gemma3-biases-untied-linear", "gpt-oss"], {"deepseek-v3"}))
def test_latent_vectors_windows_and_sinks(case, kv_cache_dtype, tmp_path):
    fixture = Fixture.load(case)
    (tmp_path / "config.json").write_text(json.dumps(fixture.config))
    save_file(fixture.tensors, tmp_path / "model.safetensors")
    prompts = [[3 + (17 * number + 5 * i) % 90 for i in range(length)] for number, length in enumerate((50, 7, 33))]
    options = {"load_format": "auto", "dtype": "float32", "max_model_len": 64}
    plain, engine = start(tmp_path, **options), start(tmp_path, **options, kv_cache_dtype=kv_cache_dtype)
    expected = prompt_scores(plain, prompts)
    error = np.abs(prompt_scores(engine, prompts) - expected).mean() / expected.std()
    assert 0 < error < 4 * ERRORS[kv_cache_dtype]  # these weights are wide, and experts may be chosen otherwise
    together = token_ids(run(engine, prompts, greedy(10)))
    assert [token_ids(run(engine, [prompt], greedy(10)))[0] for prompt in prompts] == together
    plain.close()
    engine.close()


@pytest.mark.slow
def test_scales_are_those_of_the_checkpoint_whose_config_asks_for_them(model, prompts, tmp_path):
    scheme = {"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": True, "dynamic": False}
    quantization = {"quant_method": "compressed-tensors", "config_groups": {}, "kv_cache_scheme": scheme}
    config = json.loads((model / "config.json").read_text()) | {"quantization_config": quantization}
    (tmp_path / "config.json").write_text(json.dumps(config))
    tensors = load_file(model / "model.safetensors")
    for layer in range(2):
        for number, name in enumerate("kv"):
            tensors[f"model.layers.{layer}.self_attn.{name}_scale"] = np.asarray([2.0 ** -(number + layer)], np.float32)
    save_file(tensors, tmp_path / "model.safetensors")
    stored = start(tmp_path, load_format="auto")
    assert str(stored.core._runner.space.kv_pages[0].dtype) == "uint8", "the bits of a float8 on a CPU"
    assert np.asarray(parameters(stored)["layers.1.attention.v_scale"]).tolist() == [0.25] * 4
    plain = start(model, load_format="auto")
    expected = prompt_scores(plain, prompts)
    assert np.abs(prompt_scores(stored, prompts) - expected).mean() < ERRORS["fp8"] * expected.std()
    stored.close()
    plain.close()
    tensors["model.layers.1.self_attn.v_scale"] = np.ones(3, np.float32)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"(?s)cannot be used.*layers.1.self_attn.v_scale: \[3\] for 4 heads"):
        start(tmp_path, load_format="auto")


def test_what_is_not_built_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"kv_cache_dtype must be one of auto, bfloat16, int8, fp8, .* got 'fp4'"):
        start(write_config(tmp_path), kv_cache_dtype="fp4")
    scheme = {"num_bits": 8, "type": "float", "dynamic": True}
    quantization = {"quant_method": "compressed-tensors", "config_groups": {}, "kv_cache_scheme": scheme}
    with pytest.raises(
        ConfigError, match=r"kv_cache_scheme .*'dynamic': True.* is not built.*kv_cache_dtype='bfloat16'"
    ):
        start(write_config(tmp_path, quantization_config=quantization))
    (tmp_path / "config.json").write_text(json.dumps(Fixture.load("deepseek-v3").config))
    for options, reason in (
        ({"page_size": 16}, "page_size is 16; .* latent vectors in int8 a TPU's pages have a multiple of 32 tokens"),
        ({"attention_backend": "xla"}, "attention_backend 'xla' would copy a TPU's cache of latent vectors in int8"),
    ):
        latent = EngineConfig.from_options(model=str(tmp_path), load_format="dummy", kv_cache_dtype="int8", **options)
        with pytest.raises(ConfigError, match=reason):
            plan_model(latent, target=available("v6e-1"))
