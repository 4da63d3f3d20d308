"""Dynamic NTK scaling: as transformers scales a sequence of the served context, and unscaled within the trained length."""

from __future__ import annotations

import json

import numpy as np
import pytest

from jaxengine.device.models.registry import read_config, resolve
from jaxengine.errors import ConfigError
from jaxengine.options.config import EngineConfig
from jaxengine.startup.dynamic_rope import settle_dynamic_rope
from jaxengine.startup.model_plan import plan_model
from tests.device.models.cases import Fixture

LLAMA = {
    **Fixture.load("llama").config,
    "rope_parameters": None,
    "rope_theta": 500_000.0,
    "max_position_embeddings": 64,
}
DYNAMIC = {"type": "dynamic", "factor": 4.0}


def served(asked, **changes):
    values = settle_dynamic_rope({**LLAMA, "rope_scaling": DYNAMIC, **changes}, asked)
    return read_config(resolve(values), values)


def base_of(config):
    """The base that the longest but one wavelength would have, were it an ordinary one's."""
    frequencies = config.rope.frequencies().astype(np.float64)
    return frequencies[1] ** (-config.head_dim / 2)


@pytest.mark.parametrize("asked", [16, 64])
def test_within_the_trained_length_nothing_is_stretched(asked):
    config = served(asked)
    assert config.max_position_embeddings == 256
    assert base_of(config) == pytest.approx(500_000, rel=1e-4)


@pytest.mark.parametrize(("asked", "length"), [(100, 100), (256, 256), ("auto", 256), (None, 256)])
def test_beyond_it_the_base_grows_with_the_served_context(asked, length):
    config = served(asked)
    stretch = 4.0 * length / 64 - 3.0
    exponent = config.head_dim / (config.head_dim - 2)
    assert base_of(config) == pytest.approx(500_000 * stretch**exponent, rel=1e-4)


@pytest.mark.parametrize("kind", ["longrope", "su"])
@pytest.mark.parametrize(
    ("asked", "factors"), [(16, "short_factor"), (64, "short_factor"), (65, "long_factor"), ("auto", "long_factor")]
)
def test_the_served_context_says_which_list_of_factors_holds(asked, factors, kind):
    half = Fixture.load("llama").config["hidden_size"] // Fixture.load("llama").config["num_attention_heads"] // 2
    lists = {"short_factor": [1.0] * half, "long_factor": [2.0 + i for i in range(half)]}
    scaling = {"type": kind, **lists}
    config = served(asked, rope_scaling=scaling, max_position_embeddings=256, original_max_position_embeddings=64)
    plain = 500_000 ** (-np.arange(half) / half)
    np.testing.assert_allclose(config.rope.frequencies(), plain / lists[factors], rtol=1e-6)
    assert config.rope.magnitude == pytest.approx((1 + np.log(4) / np.log(64)) ** 0.5)
    assert config.max_position_embeddings == 256


def test_each_list_of_phi_moe_has_a_magnitude_of_its_own():
    half = Fixture.load("llama").config["hidden_size"] // Fixture.load("llama").config["num_attention_heads"] // 2
    lists = {"short_factor": [1.0] * half, "long_factor": [2.0] * half, "short_mscale": 1.2, "long_mscale": 1.3}
    scaling = {"type": "longrope", **lists, "original_max_position_embeddings": 64}
    found = [served(asked, rope_scaling=scaling, max_position_embeddings=256).rope.magnitude for asked in (64, 65)]
    assert found == [1.2, 1.3]


def test_newer_files_name_the_trained_length():
    new = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 5e5, "original_max_position_embeddings": 64}
    config = served(128, rope_scaling=None, rope_theta=None, rope_parameters=new, max_position_embeddings=128)
    assert config.max_position_embeddings == 128
    exponent = config.head_dim / (config.head_dim - 2)
    assert base_of(config) == pytest.approx(500_000 * 3.0**exponent, rel=1e-4)


def test_more_than_the_factor_allows_is_refused():
    with pytest.raises(
        ConfigError, match=r"max_model_len \(257\) is more than the model was made for \(256 positions\)"
    ):
        served(257)


def test_other_configurations_are_left_alone():
    values = {**LLAMA, "rope_scaling": {"type": "linear", "factor": 2.0}}
    assert settle_dynamic_rope(values, 16) is values
    assert settle_dynamic_rope(LLAMA, 16) is LLAMA


def test_an_engine_is_planned_with_it(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    given = EngineConfig.from_options(model=str(tmp_path), load_format="dummy", max_model_len=100, rope_scaling=DYNAMIC)
    config = plan_model(given).config
    assert config.max_position_embeddings == 256
    np.testing.assert_array_equal(config.rope.frequencies(), served(100).rope.frequencies())


@pytest.mark.torch
def test_as_transformers_scales_a_sequence_of_that_length():
    pytest.importorskip("torch")
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    theirs = LlamaConfig(
        hidden_size=LLAMA["hidden_size"],
        num_attention_heads=LLAMA["num_attention_heads"],
        head_dim=LLAMA["head_dim"],
        max_position_embeddings=64,
        rope_parameters={"rope_type": "dynamic", "factor": 4.0, "rope_theta": 5e5},
    )
    for length in (16, 64, 100, 256):
        frequencies, _ = ROPE_INIT_FUNCTIONS["dynamic"](theirs, "cpu", seq_len=length)
        np.testing.assert_allclose(served(length).rope.frequencies(), frequencies.numpy(), rtol=1e-6)
