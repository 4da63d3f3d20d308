"""A model is its graph and a flat tuple of arrays."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxengine.device.layers.sharding import ONE_DEVICE, share_layers
from jaxengine.device.models.parameters import abstract_model, merge
from jaxengine.device.models.registry import read_config, resolve
from tests.device.models.cases import FAMILIES, QUICK, Fixture
from tests.quick import slow_but


def build(case, *, devices=1, dtype=jnp.bfloat16, **overrides):
    hf_config = Fixture.load(case).config
    model_class = resolve(hf_config)
    config = read_config(model_class, hf_config, overrides=overrides)
    layout = ONE_DEVICE if devices == 1 else share_layers(jax.devices()[:devices])
    return config, *abstract_model(model_class, config, dtype=dtype, layout=layout, platform="cpu")


@pytest.mark.parametrize("case", slow_but(FAMILIES, QUICK))
def test_parameters_are_abstract_and_in_one_order(case):
    _, graph, parameters = build(case)
    _, _, again = build(case)
    assert list(parameters) == list(again)
    assert all(isinstance(struct, jax.ShapeDtypeStruct) for struct in parameters.values())
    # What decides: DeepSeek's corrections of the router's scores, and how fast a recurrent state forgets.
    exact = {path for path, struct in parameters.items() if struct.dtype == jnp.float32}
    assert all(
        path.endswith(("correction", "log_rates", "skip", "step_bias", "decay_bias", "log_decays")) for path in exact
    ), exact
    assert {struct.dtype for struct in parameters.values()} <= {jnp.dtype(jnp.bfloat16), jnp.dtype(jnp.float32)}
    arrays = [np.full(struct.shape, index, np.float32) for index, struct in enumerate(parameters.values())]
    model = merge(graph, arrays)
    found = [model, *map(model.layers.__getitem__, range(len(model.layers)))]
    assert found
    for index, path in enumerate(parameters):
        node = model
        for step in path.split("."):
            node = node[int(step)] if step.isdigit() else getattr(node, step)
        assert node[...].flat[0] == index, path


@pytest.mark.slow
def test_a_model_too_large_for_this_machine_has_a_structure():
    """405 billion parameters cost nothing until they are loaded."""
    sizes = {"hidden_size": 16384, "intermediate_size": 53248, "num_attention_heads": 128, "head_dim": 128}
    layers = {"num_hidden_layers": 126, "vocab_size": 128256, "num_key_value_heads": 8}
    _, _, parameters = build("llama", **sizes, **layers)
    assert sum(struct.size for struct in parameters.values()) == pytest.approx(405e9, rel=0.01)


def test_kv_heads_are_repeated_for_more_devices_than_heads():
    config, graph, parameters = build("llama", devices=8)
    assert (config.num_kv_heads, graph.cache[0][0].heads) == (2, 8)
    key = parameters["layers.0.attention.k.weight"]
    assert key.shape == (8 * config.head_dim, config.hidden_size)
    assert key.sharding.shard_shape(key.shape) == (config.head_dim, config.hidden_size)


def test_row_parallel_weights_are_split_on_their_inputs():
    config, _, parameters = build("llama", devices=2)
    down = parameters["layers.0.mlp.down.weight"]
    assert down.sharding.shard_shape(down.shape) == (config.hidden_size, config.mlp_size // 2)
    assert parameters["norm.scale"].sharding.is_fully_replicated
