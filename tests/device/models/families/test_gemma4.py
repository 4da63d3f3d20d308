"""What config.json says of Gemma 4 in one way or another, and what it may not say."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from jaxengine.device.layers.keeps import Paged, Reads
from jaxengine.device.layers.sharding import ONE_DEVICE, share_layers
from jaxengine.device.models.families.gemma4.model import Gemma4ForCausalLM
from jaxengine.device.models.parameters import abstract_model
from jaxengine.device.models.registry import read_config
from jaxengine.device.weights.matching import match
from jaxengine.errors import ConfigError
from tests.device.models.cases import Fixture


def read(case, **changes):
    config = {**Fixture.load(case).config, **changes}
    return read_config(Gemma4ForCausalLM, {key: value for key, value in config.items() if value is not ...})


def test_heads_of_layers_that_see_everything_are_given_by_key_or_by_layer():
    by_layer = read("gemma4-experts")
    assert (by_layer.num_global_kv_heads, by_layer.global_head_dim) == (1, 24)
    by_key = read("gemma4-experts", per_layer_config=..., global_head_dim=24, num_global_key_value_heads=1)
    assert by_key == by_layer
    assert read("gemma4-shared", per_layer_config=..., global_head_dim=16, num_global_key_value_heads=1).kv_shape(
        1
    ) == (2, 16)
    for wrong in (
        {"1": {"head_dim": 16}},
        {"1": {"head_dim": 16}, "2": {"head_dim": 8}},
        {"1": {"rope": 1}, "2": {"rope": 1}},
    ):
        with pytest.raises(ConfigError, match=r"per_layer_config must give .* to layers 1, 2"):
            read("gemma4-experts", per_layer_config=wrong)


def test_positions_that_no_key_gives_are_those_of_gemma():
    config = read("gemma4-experts", rope_parameters=...)
    assert (config.global_rope.theta, config.local_rope.theta) == (1e6, 1e4)
    assert (config.global_rope.proportional, config.global_rope.rotary_dim) == (True, 6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_kv_shared_layers": 4}, "before the last 4 of 5 layers there must be one of each kind"),
        ({"num_kv_shared_layers": 5}, "before the last 5 of 5 layers"),
        ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention='all' is not built"),
        ({"enable_moe_block": True}, "enable_moe_block needs num_experts, top_k_experts and moe_intermediate_size"),
    ],
)
def test_what_cannot_be_is_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        read("gemma4-shared", **changes)


def test_a_layer_that_reads_another_keeps_nothing_and_needs_no_weights():
    """Published files hold keys and values of such layers too, which are left unread."""
    fixture, config = Fixture.load("gemma4-shared"), read("gemma4-shared")
    graph, parameters = abstract_model(Gemma4ForCausalLM, config, dtype=jnp.bfloat16, layout=ONE_DEVICE, platform="cpu")
    assert graph.cache[2:] == ((Reads(0),), (Reads(1),), (Reads(1),))
    assert all(isinstance(kept, Paged) for keeps in graph.cache[:2] for kept in keeps)
    assert "layers.2.attention.k.weight" not in parameters
    more = [f"model.layers.2.self_attn.{name}.weight" for name in ("k_proj", "v_proj", "k_norm")]
    assignments = match([*fixture.shapes, *more], Gemma4ForCausalLM.WEIGHTS, parameters, config)
    assert {name for assignment in assignments for name in assignment.sources} == set(fixture.shapes)


def test_what_is_not_built_for_shared_caches_is_refused():
    with pytest.raises(ConfigError, match="a cache in int8 is not built for models whose layers share caches"):
        abstract_model(
            Gemma4ForCausalLM,
            read("gemma4-shared"),
            dtype=jnp.bfloat16,
            layout=ONE_DEVICE,
            platform="cpu",
            kv_dtype=jnp.dtype(jnp.int8),
        )


def test_heads_whose_size_cannot_be_told_are_not_repeated():
    config = read(
        "gemma4-experts",
        per_layer_config={
            "1": {"head_dim": 16, "num_key_value_heads": 1},
            "2": {"head_dim": 16, "num_key_value_heads": 1},
        },
    )
    with pytest.raises(ConfigError, match="tensor_parallel_size=2: KV heads of this model cannot be repeated"):
        config.check_layout(share_layers(jax.devices()[:2]))
