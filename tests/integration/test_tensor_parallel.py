"""An engine over several devices gives the tokens of one device, also where KV heads must be repeated."""

from __future__ import annotations

import random

import jax
import pytest

from jaxengine.contract.sampling_params import SamplingParams
from jaxengine.device.layers.sharding import Layout
from jaxengine.errors import ConfigError
from tests.integration.engines import greedy, run, start, token_ids, write_checkpoint, write_config
from tests.quick import slow_but

ONE_SHAPE = {"buckets": ("4x16", "4x1"), "load_format": "auto"}


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    model = write_checkpoint(tmp_path_factory.mktemp("model"))
    rng = random.Random(2)
    prompts = [[rng.randrange(3, 256) for _ in range(rng.randrange(1, 60))] for _ in range(6)]
    sampled = SamplingParams(temperature=0.8, top_p=0.9, seed=4, logprobs=2, max_tokens=8, detokenize=False)
    engine = start(model, **ONE_SHAPE)
    tokens = token_ids(run(engine, prompts, greedy(8))), token_ids(run(engine, prompts, sampled))
    engine.close()
    return model, prompts, sampled, tokens


@pytest.mark.parametrize("size", slow_but([2, 8], {8}))
def test_equals_one_device(expected, size):
    model, prompts, sampled, tokens = expected
    engine = start(model, tensor_parallel_size=size, **ONE_SHAPE)
    assert (token_ids(run(engine, prompts, greedy(8))), token_ids(run(engine, prompts, sampled))) == tokens
    engine.ledger.check()
    assert engine.compile_counter.count == 0
    engine.close()


@pytest.mark.slow
@pytest.mark.parametrize("size", slow_but([2, 8], {8}))
def test_a_residual_stream_that_is_split_gives_the_same_tokens(expected, size, monkeypatch):
    """As on a TPU in steps of many tokens, here in the bucket of 64."""

    def splits(layout, tokens, *, platform):
        return layout.mesh is not None and tokens == 64

    monkeypatch.setattr(Layout, "splits_stream", splits)
    model, prompts, sampled, tokens = expected
    # what is kept has the same key: nothing else ever decides so about the same sources
    engine = start(model, tensor_parallel_size=size, xla_cache_path="off", **ONE_SHAPE)
    text = engine.executables["forward 4x16"].as_text()
    assert "reduce-scatter" in text
    assert (token_ids(run(engine, prompts, greedy(8))), token_ids(run(engine, prompts, sampled))) == tokens
    engine.close()


def test_too_many_devices_are_refused_with_the_number_there_is(tmp_path):
    with pytest.raises(ConfigError, match=rf"needs 16 devices, and JAX sees {len(jax.devices())}"):
        start(write_config(tmp_path), tensor_parallel_size=16)


def test_a_size_that_cuts_heads_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="tensor_parallel_size=3"):
        start(write_config(tmp_path), tensor_parallel_size=3)
