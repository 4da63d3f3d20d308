"""InternLM 3 has no class in transformers: it is Llama, whose parity is recorded, under other keys."""

from __future__ import annotations

import pytest

from jaxengine.device.models.families.internlm3 import InternLM3ForCausalLM
from jaxengine.device.models.families.llama import LlamaForCausalLM
from jaxengine.device.models.registry import read_config
from jaxengine.errors import ConfigError
from tests.device.models.cases import Fixture


@pytest.mark.parametrize("bias", [False, True])
def test_it_is_llama_with_biases_of_other_names(bias):
    plain = {key: value for key, value in Fixture.load("llama").config.items() if "bias" not in key}
    llama = read_config(LlamaForCausalLM, {**plain, "attention_bias": bias, "mlp_bias": bias})
    del plain["pretraining_tp"]
    assert read_config(InternLM3ForCausalLM, {**plain, "qkv_bias": bias, "bias": bias}) == llama
    assert set(InternLM3ForCausalLM.WEIGHTS) == set(LlamaForCausalLM.WEIGHTS)


def test_llamas_names_of_biases_are_not_ignored():
    plain = {key: value for key, value in Fixture.load("llama").config.items() if "bias" not in key}
    del plain["pretraining_tp"]
    with pytest.raises(ConfigError, match="mlp_bias"):
        read_config(InternLM3ForCausalLM, {**plain, "mlp_bias": True})
