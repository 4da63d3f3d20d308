"""A short convolution over rows of any sequences, cut anywhere, against one over whole sequences."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxengine.device.layers.cache import Cache
from jaxengine.device.layers.causal_convolution import CausalConvolution
from jaxengine.device.layers.context import ModelContext
from jaxengine.device.layers.keeps import CacheIndex
from jaxengine.device.layers.sharding import share_layers
from jaxengine.device.layers.short_convolution import ShortConvolution
from jaxengine.device.layers.step import Step
from tests.quick import slow_but

WIDTH, SLOTS, LAYERS, LANE = 8, 5, 3, 1


def convolution(taps: int, *, bias: bool = True) -> ShortConvolution:
    layer = ShortConvolution(WIDTH, taps, bias=bias, context=ModelContext(dtype=jnp.float32, platform="cpu"))
    for number, (_, parameter) in enumerate(nnx.to_flat_state(nnx.state(layer, nnx.Param))):
        values = np.random.default_rng(number).normal(size=parameter.shape)
        parameter.set_value(jnp.asarray(values, parameter.dtype))
    return layer


def by_hand(layer: ShortConvolution, x: np.ndarray) -> np.ndarray:
    """Of one sequence, `[n, E]`."""

    def linear(which: str) -> np.ndarray:
        matrix = getattr(layer, which)
        return x @ np.asarray(matrix.weight[...]).T + np.asarray(matrix.bias[...])

    gated, taps = linear("before") * linear("value"), np.asarray(layer.convolution.taps[...])
    padded = np.concatenate([np.zeros((len(taps) - 1, WIDTH)), gated])
    convolved = sum(padded[i : i + len(x)] * taps[i] for i in range(len(taps))) + np.asarray(
        layer.convolution.bias[...]
    )
    out = linear("after") * convolved
    return out @ np.asarray(layer.output.weight[...]).T + np.asarray(layer.output.bias[...])


def run(
    layer: ShortConvolution, states: jax.Array, rows: list[tuple[int, int, np.ndarray]], *, batch: int, places: int
):
    """Rows of (slot, start, inputs) in one step -> their outputs, and the states."""
    counts = [len(x) for _, _, x in rows] + [0] * (batch - len(rows))
    whole = np.full((places, WIDTH), np.nan, np.float32)  # what lies in padding must not matter
    flat = np.concatenate([x for _, _, x in rows])
    whole[: len(flat)] = flat
    step = Step(
        positions=jnp.zeros(places, jnp.int32),
        page_table=jnp.zeros((1, batch, 1), jnp.int32),
        offsets=jnp.asarray(np.cumsum([0, *counts]), jnp.int32),
        starts=jnp.asarray([start for _, start, _ in rows] + [0] * (batch - len(rows)), jnp.int32),
        slot_mapping=jnp.zeros((1, places), jnp.int32),
        row_slots=jnp.asarray([slot for slot, _, _ in rows] + [0] * (batch - len(rows)), jnp.int32),
        indices=(CacheIndex(state=LANE),),
        num_pages=(1,),
        page_size=1,
        attention_backend="auto",
    )
    name = layer.convolution.state.name
    call = jax.jit(lambda x, states, step: layer(x, Cache((), {name: states}), step.for_layer(0)))
    out, cache = call(jnp.asarray(whole), states, step)
    ends = np.cumsum([len(x) for _, _, x in rows])
    return np.split(np.asarray(out)[: ends[-1]], ends[:-1]), cache.states[name]


def fresh(taps: int) -> jax.Array:
    """States full of what earlier owners of the slots left."""
    return jnp.full((LAYERS, SLOTS, taps - 1, WIDTH), 7.0)


@pytest.mark.parametrize("taps", slow_but([2, 3, 4], {3}))
def test_sequences_cut_into_rows_are_convolved_as_whole_ones(taps):
    layer = convolution(taps)
    generator = np.random.default_rng(0)
    sequences = {slot: generator.normal(size=(size, WIDTH)).astype(np.float32) for slot, size in ((3, 13), (1, 9))}
    found: dict[int, list[np.ndarray]] = {slot: [] for slot in sequences}
    states = fresh(taps)
    for cuts in ({3: 5, 1: 1}, {3: 1, 1: 1}, {3: 1, 1: 4}, {1: 1, 3: 6}, {1: 2}):
        done = {slot: sum(map(len, parts)) for slot, parts in found.items()}
        rows = [(slot, done[slot], sequences[slot][done[slot] : done[slot] + count]) for slot, count in cuts.items()]
        outputs, states = run(layer, states, rows, batch=3, places=16)
        for slot, output in zip(cuts, outputs, strict=True):
            found[slot].append(output)
    for slot, x in sequences.items():
        np.testing.assert_allclose(np.concatenate(found[slot]), by_hand(layer, x), rtol=1e-4, atol=1e-4)


def test_other_slots_and_layers_stay_as_they_are():
    layer, x = convolution(3), np.ones((4, WIDTH), np.float32)
    _, states = run(layer, fresh(3), [(2, 0, x)], batch=3, places=8)
    changed = np.argwhere((np.asarray(states) != 7.0).any(axis=(2, 3))).tolist()
    assert [LANE, 2] in changed
    assert all(place in ([LANE, 0], [LANE, 2]) for place in changed), "slot 0 is the sink"


def test_a_token_is_the_same_to_the_last_bit_in_any_row_and_company():
    layer, generator = convolution(3), np.random.default_rng(1)
    x, other = (generator.normal(size=(size, WIDTH)).astype(np.float32) for size in (12, 7))
    [whole], _ = run(layer, fresh(3), [(1, 0, x)], batch=2, places=12)
    for cut in (1, 2, 5, 11):
        [_, first], states = run(layer, fresh(3), [(4, 0, other), (1, 0, x[:cut])], batch=4, places=33)
        [second, _], _ = run(layer, states, [(1, cut, x[cut:]), (4, 7, other)], batch=4, places=33)
        np.testing.assert_array_equal(np.concatenate([first, second]), whole)


def test_channels_that_fill_vectors_are_kept_in_them():
    layout = share_layers(jax.devices()[:4])

    def kept(channels: int, axis: str) -> tuple[tuple[int, ...], tuple[str, ...]]:
        context = ModelContext(dtype=jnp.float32, platform="cpu", layout=layout)
        state = CausalConvolution(channels, 4, bias=False, axis=axis, state="inputs", context=context).state
        return state.shape, state.axes

    assert kept(1024, "heads") == ((3, 8, 128), ("positions", "heads", "head_dim"))
    assert kept(1024, "embed") == ((3, 8, 128), ("positions", "embed", "head_dim"))
    assert kept(256, "heads") == ((3, 256), ("positions", "heads")), "64 channels on each device"
    assert kept(256, "embed") == ((3, 2, 128), ("positions", "embed", "head_dim"))
