"""A mixture of experts: the weighted sum it is defined as, padding that enters none, rows that do not depend on others."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxengine.device.layers import experts as layers
from jaxengine.device.layers.activation import ClampedGate
from jaxengine.device.layers.context import ModelContext
from jaxengine.device.layers.expert_rows import own_rows
from jaxengine.device.layers.experts import ExpertsShape, SharedSparseMLP, SparseMLP
from jaxengine.device.layers.keeps import CacheIndex
from jaxengine.device.layers.routing import Routing
from jaxengine.device.layers.schemes.by_path import Schemes
from jaxengine.device.layers.sharding import ONE_DEVICE, share_layers
from jaxengine.device.layers.step import Step
from pallas_kernels import grouped_mlp
from tests.pallas_kernels.simulation import checked_tpu
from tests.quick import slow_but

ROUTING = Routing(count=8, chosen=3, normalised=True)
SHAPE = ExpertsShape(width=16, inner=24, activation="silu", routing=ROUTING)


def experts(shape=SHAPE, *, dtype=jnp.float32, layout=ONE_DEVICE, scheme=None, platform="cpu", **shared):
    """With the same weights at every call, on any mesh; beside one of all tokens as `shared` says."""
    context = ModelContext(
        dtype=jnp.dtype(dtype), platform=platform, layout=layout, scheme=Schemes.by_option(scheme).layers
    )
    layer = SharedSparseMLP(shape, **shared, context=context) if shared else SparseMLP(shape, context=context)
    for number, (path, parameter) in enumerate(nnx.to_flat_state(nnx.state(layer, nnx.Param))):
        generator = np.random.default_rng(number)
        if parameter.dtype == jnp.int8:
            values = generator.integers(-127, 128, parameter.shape)
        else:
            values = generator.normal(size=parameter.shape) / (100 if path[-1] == "scale" else 4)
        axes = parameter.get_metadata()["axes"]
        device = layout.sharding(axes)
        parameter.set_value(jnp.asarray(values, parameter.dtype, device=device))
    return layer


def step(places, *, real):
    one = jnp.zeros(1, jnp.int32)
    rows = {"page_table": one[None, None], "offsets": jnp.array([0, real], jnp.int32), "starts": one}
    slots = jnp.zeros((1, places), jnp.int32)
    positions = jnp.zeros(places, jnp.int32)
    return Step(
        positions,
        **rows,
        slot_mapping=slots,
        indices=(CacheIndex(),),
        num_pages=(1,),
        page_size=1,
        attention_backend="auto",
    )


def run(layer, x, *, real=None):
    return np.asarray(nnx.jit(lambda layer, x, step: layer(x, step))(layer, x, step(len(x), real=real or len(x))))


def tokens(count, *, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=(count, SHAPE.width)), jnp.float32)


def by_hand(layer, shape, x):
    """Token by token and expert by expert, in float64."""
    router, gate, up, down = (
        np.asarray(array[...], np.float64)
        for array in (layer.router, layer.gate.weight, layer.up.weight, layer.down.weight)
    )
    mixed = []
    for token in np.asarray(x, np.float64):
        scores = np.exp(router @ token)
        chosen = np.argsort(-scores)[: shape.routing.chosen]
        weights = scores[chosen] / (scores[chosen] if shape.routing.normalised else scores).sum()
        inner = [(token @ gate[e]) / (1 + np.exp(-token @ gate[e])) * (token @ up[e]) for e in chosen]
        mixed.append(sum(w * (i @ down[e]) for w, i, e in zip(weights, inner, chosen, strict=True)))
    return np.array(mixed)


@pytest.mark.parametrize("normalised", [True, False])
@pytest.mark.parametrize("count", [1, 5, 40])
def test_it_is_the_weighted_sum_of_the_chosen(count, normalised):
    shape = replace(SHAPE, routing=replace(ROUTING, normalised=normalised))
    layer = experts(shape)
    np.testing.assert_allclose(run(layer, tokens(count)), by_hand(layer, shape, tokens(count)), atol=1e-5)


@pytest.mark.parametrize(
    ("dtype", "scheme"),
    [
        (jnp.float32, None),
        pytest.param(jnp.bfloat16, "int8", marks=pytest.mark.slow),
        pytest.param(jnp.float32, "int8", marks=pytest.mark.slow),
        pytest.param(jnp.bfloat16, None, marks=pytest.mark.slow),
    ],
)
def test_a_token_is_the_same_to_the_last_bit_beside_any_others(dtype, scheme):
    layer = experts(dtype=dtype, scheme=scheme)
    x = tokens(64)
    whole = run(layer, x)
    for count in (1, 2, 7, 33):
        chosen = np.random.default_rng(count).permutation(64)[:count]
        np.testing.assert_array_equal(run(layer, x[chosen]), whole[chosen])


@pytest.mark.parametrize("scheme", [None, "int8"])
def test_padding_enters_no_expert(scheme):
    layer = experts(scheme=scheme)
    x, beyond = tokens(6), tokens(10, seed=1)
    padded = run(layer, jnp.concatenate([x, beyond]), real=6)
    np.testing.assert_array_equal(padded[:6], run(layer, x))
    np.testing.assert_array_equal(padded[6:], 0)
    not_numbers = run(layer, jnp.concatenate([x, jnp.full_like(beyond, jnp.nan)]), real=6)
    np.testing.assert_array_equal(not_numbers[:6], padded[:6])


@pytest.mark.parametrize("scheme", slow_but([None, "int8"], {"int8"}))
@pytest.mark.parametrize("expert_parallel", [False, True])
@pytest.mark.parametrize("devices", slow_but([2, 4, 8], {4}))
def test_devices_make_no_difference(devices, expert_parallel, scheme):
    layout = share_layers(jax.devices()[:devices], expert_parallel=expert_parallel)
    x = tokens(20)
    alone = run(experts(scheme=scheme), x, real=17)
    with jax.set_mesh(layout.mesh):
        found = run(experts(layout=layout, scheme=scheme), x, real=17)
    np.testing.assert_allclose(found, alone, atol=2e-6 * np.abs(alone).max())


@pytest.mark.parametrize(
    ("platform", "scheme", "expert_parallel", "weighed"),
    slow_but(
        [
            (platform, *way)
            for way in [(None, False, True), (None, True, False), ("int8", True, True), ("fp8", True, True)]
            for platform in ("cpu", "tpu")
        ],
        {("cpu", None, False, True), ("tpu", "int8", True, True)},
        several=True,
    ),
)
def test_an_expert_of_all_tokens_is_summed_with_the_others(platform, scheme, expert_parallel, weighed):
    layout = share_layers(jax.devices()[:4], expert_parallel=expert_parallel)
    x, options = tokens(20), {"shared": 32, "weighed": weighed, "scheme": scheme}
    alone = run(experts(**options), x, real=17)
    with jax.set_mesh(layout.mesh):
        found = run(experts(layout=layout, platform=platform, **options), x, real=17)
    tolerance = 2e-6 if (scheme, platform) == (None, "cpu") else 2e-2
    np.testing.assert_allclose(found[:17], alone[:17], atol=tolerance * np.abs(alone).max())


@pytest.mark.parametrize(("weighs_input", "blocks"), [(False, 1), (True, 2)])
def test_a_tpu_passes_over_the_pairs_of_other_devices(weighs_input, blocks):
    layout, shape = share_layers(jax.devices()[:4], expert_parallel=True), replace(SHAPE, weighs_input=weighs_input)
    x = tokens(200).at[180:].set(jnp.nan)
    alone, layer = experts(shape), experts(shape, layout=layout, platform="tpu")
    for each in (alone, layer):
        if blocks == 2:  # the first device has 2 of the 3 experts of all tokens
            each.router.set_value(jnp.zeros_like(each.router[...]))
    assert own_rows(600, layout, "tpu") == 256
    with jax.set_mesh(layout.mesh):
        found = run(layer, x, real=180)
    expected = run(alone, x, real=180)[:180]
    np.testing.assert_allclose(found[:180], expected, atol=2e-5 * np.abs(expected).max())
    np.testing.assert_array_equal(found[180:], 0)


@pytest.mark.slow
def test_a_tpu_keeps_what_experts_make_in_its_memory(monkeypatch):
    """In one kernel, as far as there is one."""
    shape, used = replace(SHAPE, width=2048, inner=128), []
    monkeypatch.setattr(layers, "grouped_mlp", lambda *args, **options: used.append(1) or grouped_mlp(*args, **options))
    x = jnp.asarray(np.random.default_rng(0).normal(size=(20, 2048)), jnp.bfloat16)
    expected = run(experts(shape, dtype=jnp.bfloat16), x, real=17).astype(np.float32)
    with checked_tpu():
        found = run(experts(shape, dtype=jnp.bfloat16, platform="tpu"), x, real=17).astype(np.float32)
    assert used
    np.testing.assert_allclose(found, expected, atol=2e-2 * np.abs(expected).max())


def test_equal_scores_choose_the_first():
    weights, chosen = ROUTING(jnp.zeros((2, 8)), None, platform="cpu")
    np.testing.assert_array_equal(chosen, [[0, 1, 2]] * 2)
    np.testing.assert_allclose(weights, np.full((2, 3), 1 / 3), rtol=1e-6)


BIASED = ExpertsShape(
    width=16,
    inner=24,
    activation=ClampedGate(slope=1.7, limit=0.5),
    routing=replace(ROUTING, corrected=True),
    bias=True,
)


def test_biases_the_clamped_gate_and_the_correction_by_hand():
    layer, x = experts(BIASED), tokens(5)
    values = {
        ".".join(map(str, path)): np.asarray(parameter[...], np.float64)
        for path, parameter in nnx.to_flat_state(nnx.state(layer, nnx.Param))
    }
    expected = []
    for token in np.asarray(x, np.float64):
        scores = np.exp(values["router"] @ token + values["router_bias"])
        shares = scores / scores.sum()
        chosen = np.argsort(-(shares + values["correction"]))[: ROUTING.chosen]
        mixed = np.zeros(BIASED.width)
        for expert in chosen:
            gate, up = (
                token @ values[f"{name}.weight"][expert] + values[f"{name}.bias"][expert] for name in ("gate", "up")
            )
            gate, up = np.minimum(gate, 0.5), np.clip(up, -0.5, 0.5)
            inner = gate / (1 + np.exp(-1.7 * gate)) * (up + 1)
            weight = shares[expert] / shares[chosen].sum()
            mixed += weight * (inner @ values["down.weight"][expert] + values["down.bias"][expert])
        expected.append(mixed)
    np.testing.assert_allclose(run(layer, x), expected, atol=1e-5)


@pytest.mark.parametrize("expert_parallel", [False, True])
def test_biases_are_added_once_whatever_the_devices(expert_parallel):
    layout = share_layers(jax.devices()[:4], expert_parallel=expert_parallel)
    x = tokens(20)
    alone = run(experts(BIASED), x, real=17)
    with jax.set_mesh(layout.mesh):
        found = run(experts(BIASED, layout=layout), x, real=17)
    np.testing.assert_allclose(found, alone, atol=2e-6 * np.abs(alone).max())
