"""Devices that exchange heads for tokens, against each with its own heads of all tokens."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxengine.device.layers.attention import HEADS, of_own_places
from jaxengine.device.layers.sharding import share_layers
from pallas_kernels import latent_attention
from tests.quick import at_once, slow_but

DEVICES, HEADS_EACH, SIZE, VALUES, PAGE_TOKENS, PAGES_EACH = 4, 2, 6, 4, 4, 3
ROWS = {
    "rows of one token": ([1] * 8, [5, 0, 11, 3, 8, 2, 7, 1]),
    "longer rows, over several devices": ([5, 2, 0, 1], [3, 0, 4, 11]),
    "padding": ([1, 1, 1], [4, 2, 9]),
}


@pytest.mark.parametrize("expert_parallel", slow_but([False, True], {True}))
@pytest.mark.parametrize("rows", ROWS)
def test_devices_with_all_heads_of_their_own_tokens_answer_as_those_with_their_own_heads(rows, expert_parallel):
    counts, starts = ROWS[rows]
    places, numbers = 2 * DEVICES, np.random.default_rng(0)
    offsets, starts = jnp.cumulative_sum(jnp.asarray(counts), include_initial=True), jnp.asarray(starts)
    queries = jnp.asarray(numbers.standard_normal((places, DEVICES * HEADS_EACH, SIZE), np.float32))
    table = jnp.arange(len(counts) * PAGES_EACH, dtype=jnp.int32).reshape(len(counts), PAGES_EACH)
    pages = jnp.asarray(numbers.standard_normal((table.size, 1, PAGE_TOKENS, SIZE), np.float32))

    def attend(queries: jax.Array, offsets: jax.Array, starts: jax.Array) -> jax.Array:
        options = {"scale": 0.5, "value_size": VALUES, "platform": "cpu"}
        return latent_attention(queries, pages, table, offsets, starts, **options)

    layout = share_layers(jax.devices()[:DEVICES], expert_parallel=expert_parallel)
    exchanged = layout.per_device(
        lambda queries: of_own_places(attend, queries, offsets, starts, layout.across("heads")),
        inputs=(HEADS,),
        outputs=HEADS,
    )
    expected = at_once(attend, queries, offsets, starts)
    np.testing.assert_allclose(at_once(exchanged, queries), expected, atol=1e-6, rtol=0)
