"""Sums and gathers over devices in a grid, against those in one step."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxengine.device.layers import exchange
from jaxengine.device.layers.exchange import gather, scatter_sum
from jaxengine.device.layers.sharding import share_layers

DEVICES, TOKENS, WIDTH = 8, 24, 3


@pytest.mark.parametrize("expert_parallel", [False, True])
@pytest.mark.parametrize(("one_step", "turned"), [(8, False), (8, True), (4, False)])
def test_a_device_gets_the_sum_of_its_own_tokens(monkeypatch, one_step, turned, expert_parallel):
    monkeypatch.setattr(exchange, "ONE_STEP", one_step)
    layout = share_layers(jax.devices()[:DEVICES], expert_parallel=expert_parallel)
    across = layout.across("split_tokens")
    given = np.random.default_rng(0).integers(-9, 9, (DEVICES, TOKENS, WIDTH)).astype(np.float32)
    add = layout.per_device(
        lambda x: scatter_sum(x[0], across, turned=turned),
        inputs=(("split_tokens", "tokens", "embed"),),
        outputs=("split_tokens", "embed"),
    )
    lowered = jax.jit(add).lower(jnp.asarray(given))
    assert lowered.as_text().count("stablehlo.reduce_scatter") == (1 if one_step == DEVICES else 2)
    np.testing.assert_array_equal(lowered.compile()(jnp.asarray(given)), given.sum(axis=0))


@pytest.mark.parametrize("one_step", [8, 4])
def test_a_device_gets_all_tokens_in_their_order(monkeypatch, one_step):
    monkeypatch.setattr(exchange, "ONE_STEP", one_step)
    layout = share_layers(jax.devices()[:DEVICES])
    given = np.arange(TOKENS * WIDTH).reshape(TOKENS, WIDTH)
    whole = layout.gather_stream(jnp.asarray(given), platform="cpu")
    np.testing.assert_array_equal(whole, given)  # nothing is split on a CPU
    every = layout.per_device(
        lambda x: gather(x, layout.across("split_tokens"))[None],
        inputs=(("split_tokens", "embed"),),
        outputs=("split_tokens", "tokens", "embed"),
    )
    np.testing.assert_array_equal(jax.jit(every)(jnp.asarray(given)), np.broadcast_to(given, (DEVICES, TOKENS, WIDTH)))
