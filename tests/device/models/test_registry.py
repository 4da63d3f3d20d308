from __future__ import annotations

import pytest

from jaxengine.device.models.interface import Purpose
from jaxengine.device.models.registry import ARCHITECTURES, ENCODERS, WITHOUT_HEAD, purpose, resolve
from jaxengine.errors import ConfigError


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_row_leads_to_the_class_it_names(architecture):
    assert resolve({"architectures": [architecture]}).__name__ == architecture


def test_a_tower_may_decide():
    pixtral = {"architectures": ["LlavaForConditionalGeneration"], "vision_config": {"model_type": "pixtral"}}
    assert resolve(pixtral).__name__ == "PixtralLlavaForConditionalGeneration"


@pytest.mark.parametrize(("architecture", "name"), WITHOUT_HEAD.items())
def test_embedding_models_have_the_layers_of_a_model_with_a_head(architecture, name):
    assert resolve({"architectures": [architecture]}).__name__ == name
    assert purpose({"architectures": [architecture]}) is Purpose.EMBED
    assert purpose({"architectures": [name]}) is Purpose.GENERATE


@pytest.mark.parametrize("architecture", ENCODERS)
def test_encoders_are_for_embeddings(architecture):
    assert purpose({"architectures": [architecture]}) is Purpose.EMBED
    assert resolve({"architectures": [architecture]}).__name__ == ENCODERS[architecture].rpartition(":")[2]


def test_the_first_known_architecture_wins():
    assert resolve({"architectures": ["Unheard", "OPTForCausalLM"]}).__name__ == "OPTForCausalLM"


def test_an_unknown_architecture_lists_the_known_ones_and_the_nearest():
    with pytest.raises(
        ConfigError,
        match=r"'LlamaForCasualLM'.*Known are ApertusForCausalLM, ArceeForCausalLM.*Did you mean 'LlamaForCausalLM'",
    ):
        resolve({"architectures": ["LlamaForCasualLM"]})


@pytest.mark.parametrize("config", [{}, {"architectures": []}, {"architectures": None}, {"architectures": "Llama"}])
def test_a_config_without_architectures_says_what_to_do(config):
    with pytest.raises(ConfigError, match=r"must name the model's class in 'architectures'.*hf_overrides"):
        resolve(config)
