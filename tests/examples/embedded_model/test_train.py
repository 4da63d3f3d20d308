"""A training run of a few steps at a toy size, and the formula against what it exports."""

import json

import pytest
from tokenizers import Tokenizer

pytest.importorskip("optax", reason="training needs the `train` extra")
pytest.importorskip("matplotlib", reason="training needs the `train` extra")

import jax
import jax.numpy as jnp
import numpy as np

from examples.embedded_model.evaluate import examine, load_checkpoint
from examples.embedded_model.model import ModelConfig, forward, init, num_params
from examples.embedded_model.optimizer import learning_rate
from examples.embedded_model.skills import questions
from examples.embedded_model.train import TrainConfig, train

TOY = ModelConfig(vocab_size=0, hidden_size=64, num_layers=2, num_heads=2, num_kv_heads=1, head_size=16, ffn_size=32)


@pytest.mark.slow
def test_a_short_run_learns_and_writes_a_checkpoint_that_loads(tmp_path):
    output = tmp_path / "model"
    config = TrainConfig(output, steps=3, batch=2, length=256, vocab_size=400, tokenizer_documents=50, save_every=2)
    params = train(config, TOY)
    loaded, model = load_checkpoint(output)
    assert model.vocab_size == 400
    assert not list(tmp_path.glob("*.partial"))
    for name, value in params.items():
        np.testing.assert_array_equal(loaded[name], value.astype(jnp.bfloat16).astype(jnp.float32))
    assert "intermediate" not in (output / "README.md").read_text(encoding="utf-8")
    assert json.loads((output / "config.json").read_text(encoding="utf-8"))["vocab_size"] == 400
    tokenizer = Tokenizer.from_file(str(output / "tokenizer.json"))
    assert examine(loaded, model, tokenizer, list(questions("repeating a sentence", seed=0, count=2))) == [False, False]


def test_a_place_sees_only_earlier_places_of_its_own_document():
    config = ModelConfig(
        vocab_size=50, hidden_size=32, num_layers=2, num_heads=2, num_kv_heads=1, head_size=16, ffn_size=32
    )
    params = {
        name: value + 0.1 for name, value in init(jax.random.key(0), config).items()
    }  # nothing writes at the start
    tokens = jnp.asarray([[5, 6, 7, 8, 9, 10]])
    segments = jnp.asarray([[0, 0, 0, 1, 1, 1]])
    compiled = jax.jit(forward, static_argnames="config")
    before = compiled(params, tokens, segments, config=config)
    after = compiled(params, tokens.at[0, 1].set(20), segments, config=config)
    changed = np.abs(np.asarray(after - before)).max(axis=-1)[0] > 0
    assert changed.tolist() == [False, True, True, False, False, False]
    assert num_params(config) == sum(value.size for value in params.values())


def test_learning_rate_rises_then_falls_to_zero():
    rates = [learning_rate(progress / 10, peak=1.0, warmup=0.2) for progress in range(11)]
    assert rates[0] == 0.0
    assert rates[2] == max(rates) == 1.0
    assert rates[-1] == 0.0
