"""RWKV-7: what its configuration says, and states and first values that follow their tokens alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from jaxengine.device.layers.sharding import ONE_DEVICE
from jaxengine.device.models.registry import read_config, resolve
from jaxengine.errors import ConfigError
from tests.device.models.cases import PROMPTS, Fixture
from tests.device.models.paged import PagedModel

PUBLISHED = {
    "a_low_rank_dim": 96,
    "architectures": ["RWKV7ForCausalLM"],
    "attn": None,
    "attn_mode": "chunk",
    "auto_map": {
        "AutoConfig": "modeling_rwkv7.RWKV7Config",
        "AutoModel": "modeling_rwkv7.RWKV7Model",
        "AutoModelForCausalLM": "modeling_rwkv7.RWKV7ForCausalLM",
    },
    "bos_token_id": 0,
    "decay_low_rank_dim": 96,
    "eos_token_id": 0,
    "fuse_cross_entropy": True,
    "fuse_norm": False,
    "gate_low_rank_dim": 256,
    "head_dim": 64,
    "hidden_act": "sqrelu",
    "hidden_ratio": 4.0,
    "hidden_size": 2048,
    "initializer_range": 0.02,
    "intermediate_size": 8192,
    "max_position_embeddings": 2048,
    "model_type": "rwkv7",
    "norm_bias": True,
    "norm_eps": 1e-5,
    "norm_first": True,
    "num_heads": 32,
    "num_hidden_layers": 24,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.48.0",
    "use_cache": True,
    "v_low_rank_dim": 64,
    "value_dim": [2048] * 24,
    "vocab_size": 65_536,
}
"""By the fields of flash-linear-attention's configuration, of RWKV-7 with 1.5 billion parameters."""


def read(**changes: Any) -> Any:
    config = {name: value for name, value in {**PUBLISHED, **changes}.items() if value != "absent"}
    return read_config(resolve(config), config)


def test_a_published_configuration_is_read() -> None:
    config = read()
    mix = config.time_mix
    assert (mix.heads, mix.head_dim, mix.decay_rank, mix.rate_rank, mix.gate_rank, mix.value_rank) == (
        32, 64, 96, 96, 256, 64,
    )  # fmt: skip
    assert (config.mlp_size, mix.norm_epsilon, mix.length_epsilon) == (8192, 64e-5, 1e-24)
    assert config.max_position_embeddings == 2**20
    config.check_layout(ONE_DEVICE)


@pytest.mark.parametrize(
    ("changes", "heads", "mlp_size"),
    [
        ({"intermediate_size": None, "hidden_ratio": 3.5}, 32, 7168),
        ({"head_dim": None, "num_heads": 16}, 16, 8192),
        ({"num_heads": 8, "value_dim": 2048}, 32, 8192),
        ({"head_dim": "absent", "num_heads": "absent", "value_dim": "absent"}, 32, 8192),
    ],
)
def test_sizes_follow_from_one_another(changes: dict[str, Any], heads: int, mlp_size: int) -> None:
    config = read(**changes)
    assert (config.num_heads, config.time_mix.heads, config.mlp_size) == (heads, heads, mlp_size)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attn": {"layers": [1], "num_heads": 8}}, "attn=.* is not built, only None"),
        ({"hidden_act": "relu"}, "hidden_act='relu' is not built"),
        ({"value_dim": 4096}, "value_dim=4096 is not built, only hidden_size=2048"),
        ({"head_dim": 60}, "heads of head_dim=60 channels do not make up hidden_size=2048"),
    ],
)
def test_what_is_not_built_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(**changes)


@pytest.mark.slow
def test_company_and_cuts_change_no_bit_on_a_cpu() -> None:
    fixture = Fixture.load("rwkv7")
    model = PagedModel(fixture.config, fixture.tensors)
    expected = model.logprobs(PROMPTS, seq=5)
    alone = [model.logprobs([prompt], seq=8)[0] for prompt in PROMPTS]
    for again in (alone, model.logprobs(PROMPTS, seq=3), model.logprobs(PROMPTS, seq=1)):
        for here, there in zip(again, expected, strict=True):
            np.testing.assert_array_equal(here, there)
