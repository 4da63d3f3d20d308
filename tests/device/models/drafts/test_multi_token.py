"""Layers that predict several tokens guess what transformers' layers do."""

from __future__ import annotations

import numpy as np
import pytest

from jaxengine.device.models.drafts.registry import PREDICTORS, predictor_of
from jaxengine.device.models.registry import read_config, resolve
from jaxengine.device.weights.matching import source_pattern
from jaxengine.errors import ConfigError
from tests.device.models.drafts.cases import COUNT, DRAFTS, TOKENS, DraftFixture, states
from tests.device.models.drafts.guessing import Guesser, of_target

OFTEN = ("deepseek-v3", "mimo")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name if name in OFTEN else pytest.param(name, marks=pytest.mark.rare) for name in DRAFTS]
)
def test_guesses_are_those_of_transformers(name):
    case, fixture = DRAFTS[name], DraftFixture.load(name)
    family = resolve(fixture.config)
    config = read_config(family, fixture.config)
    draft_class = predictor_of(family)
    tensors = fixture.tensors(case)
    own = [source_pattern(rule.source) for rule in draft_class.rules(config)]
    guesser = Guesser(
        draft_class,
        config,
        {name: tensor for name, tensor in tensors.items() if any(pattern.fullmatch(name) for pattern in own)},
        of_target(family.WEIGHTS, draft_class.SHARED, tensors),
    )
    guesses, logits = guesser.guess(TOKENS, states(), COUNT)
    assert guesses == fixture.guesses
    np.testing.assert_allclose(logits, fixture.logits, atol=1e-4 * fixture.logits.std())
    left = {name for name in tensors if not any(pattern.fullmatch(name) for pattern in own)}
    assert left <= {"model.embed_tokens.weight", "backbone.embeddings.weight", "lm_head.weight", "model.norm.weight"}


@pytest.mark.parametrize("name", PREDICTORS)
def test_each_is_a_class_of_the_family(name):
    family = resolve({"architectures": [name]})
    shared = set(predictor_of(family).__mro__) & {base for base in family.__mro__ if base.__name__.endswith("CausalLM")}
    assert shared


def test_a_family_without_such_layers_is_refused():
    with pytest.raises(ConfigError, match="LlamaForCausalLM has none; those that have: DeepseekV3"):
        predictor_of(resolve({"architectures": ["LlamaForCausalLM"]}))
