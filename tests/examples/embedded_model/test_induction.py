"""The circuit that copies, before any training."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from examples.embedded_model.induction import add_induction
from examples.embedded_model.model import ModelConfig, Params, forward, init

CONFIG = ModelConfig(vocab_size=300, num_layers=2, ffn_size=64)


def copied(params: Params) -> float:
    """Of 40 random tokens said twice, the share of the second saying that is most likely after the token before."""
    said = np.random.default_rng(0).permutation(CONFIG.vocab_size)[:40]
    tokens = np.concatenate([said, said])[None]
    logits = np.array(forward(params, jnp.asarray(tokens), jnp.zeros_like(tokens), CONFIG))[0]
    logits[np.arange(80), tokens[0]] = -np.inf  # the head first guesses the token itself
    return float((logits.argmax(-1)[40:79] == tokens[0, 41:]).mean())


@pytest.mark.slow
def test_two_heads_copy_what_followed_the_last_time():
    params = init(jax.random.key(0), CONFIG)
    assert copied(params) < 0.1
    assert copied(add_induction(params, CONFIG)) > 0.9
