"""Products of four devices that hide what they send are those of one, and a token's sum is the same on any device."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxengine.device.layers import sharding
from jaxengine.device.layers.collective_matmul import (
    SQUARE,
    by_distance,
    in_order,
    multiply_gathered,
    multiply_scattered,
)
from jaxengine.device.layers.context import ModelContext
from jaxengine.device.layers.linear import Linear, project
from jaxengine.device.layers.mlp import MLP, GatedMLP
from jaxengine.device.layers.schemes.int8 import Int8
from jaxengine.device.layers.sharding import DATA, TENSOR, Layout, share_layers

TOKENS, WIDTH, INNER = 16, 6, 8


def layout_of(devices: int = SQUARE) -> Layout:
    return share_layers(jax.devices()[:devices])


def given(*shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(0).integers(-9, 9, shape).astype(np.float32))


def test_each_device_multiplies_all_tokens() -> None:
    x, weight = given(TOKENS, WIDTH), given(INNER, WIDTH)

    def product(x: jax.Array, weight: jax.Array) -> jax.Array:
        parts = multiply_gathered(x, lambda part: part @ weight.T, TENSOR)
        return in_order(parts, TENSOR)

    multiply = layout_of().per_device(
        product, inputs=(("split_tokens", "embed"), ("mlp", "embed")), outputs=("tokens", "mlp")
    )
    np.testing.assert_array_equal(jax.jit(multiply)(x, weight), x @ weight.T)


def scattered(x: jax.Array, weight: jax.Array) -> jax.Array:
    def product(x: jax.Array, weight: jax.Array) -> jax.Array:
        return multiply_scattered(by_distance(x, TENSOR), lambda part: part @ weight.T, TENSOR)

    multiply = layout_of().per_device(
        product, inputs=(("tokens", "mlp"), ("embed", "mlp")), outputs=("split_tokens", "embed")
    )
    found: jax.Array = jax.jit(multiply)(x, weight)
    return found


def test_a_device_gets_the_sums_of_its_own_tokens() -> None:
    x, weight = given(TOKENS, INNER), given(WIDTH, INNER)
    found = scattered(x, weight)
    np.testing.assert_array_equal(found, x @ weight.T)
    assert found.addressable_shards[0].data.shape == (TOKENS // SQUARE, WIDTH)


def test_a_tokens_sum_does_not_depend_on_the_device_that_has_it() -> None:
    generator = np.random.default_rng(0)
    x, weight = (jnp.asarray(generator.normal(size=(count, INNER)), jnp.bfloat16) for count in (TOKENS, 64))
    found = scattered(x, weight)
    part = TOKENS // SQUARE
    for moved in range(part, TOKENS, part):
        np.testing.assert_array_equal(scattered(jnp.roll(x, moved, axis=0), weight), jnp.roll(found, moved, axis=0))


def context(layout: Layout, **options: object) -> ModelContext:
    return ModelContext(dtype=jnp.dtype(jnp.float32), platform="cpu", layout=layout, **options)  # type: ignore[arg-type]


def fill(linears: list[Linear]) -> None:
    for linear in linears:
        for name, array in linear.arrays().items():
            values = np.random.default_rng(array.size).normal(size=array.shape)
            getattr(linear, name).set_value(jnp.asarray(values, array.dtype))


@pytest.fixture
def few_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Devices split as few tokens as there are."""
    monkeypatch.setattr(sharding, "MANY_ROWS", 1)
    monkeypatch.setattr(Layout, "splits_stream", lambda layout, tokens, *, platform: layout.mesh is not None)


@pytest.mark.usefixtures("few_tokens")
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("options", [{}, {"scheme": Int8()}], ids=["dense", "int8"])
def test_projections_are_those_of_one_device(bias: bool, options: dict[str, object]) -> None:
    x = jax.random.normal(jax.random.key(0), (TOKENS, WIDTH))
    found, texts = [], []
    for layout in (Layout(), layout_of()):
        linears = [
            Linear(WIDTH, outputs, axes=("heads", "embed"), bias=bias, context=context(layout, **options))
            for outputs in (8, 4)
        ]
        fill(linears)
        run = jax.jit(lambda x, linears=linears: project(x, None, *linears, sole=True))
        texts.append(run.lower(x).as_text())
        found.append(run(x))
    assert ("collective_permute" in texts[1]) == (not options), "matrices of a scheme are multiplied as before"
    for alone, spread in zip(*found, strict=True):
        np.testing.assert_allclose(spread, alone, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("few_tokens")
def test_what_others_read_too_is_gathered_once() -> None:
    """An expert that all tokens take reads what the chosen ones read."""
    linear = Linear(WIDTH, 8, axes=("mlp", "embed"), bias=False, context=context(layout_of()))
    lowered = jax.jit(lambda x: project(x, None, linear, linear)).lower(given(TOKENS, WIDTH))
    assert "collective_permute" not in lowered.as_text()


@pytest.mark.usefixtures("few_tokens")
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("gated", [False, True])
def test_feed_forwards_are_those_of_one_device(gated: bool, bias: bool) -> None:
    x = jax.random.normal(jax.random.key(0), (TOKENS, WIDTH))
    found = []
    for layout in (Layout(), layout_of()):
        make = GatedMLP if gated else MLP
        mlp = make(WIDTH, INNER, activation="silu", bias=bias, context=context(layout))
        fill([mlp.up, mlp.down, *([mlp.gate] if isinstance(mlp, GatedMLP) else [])])
        run = jax.jit(lambda x, mlp=mlp: mlp(x, None))
        found.append(run(x))
        permutes = run.lower(x).as_text().count("collective_permute")
        assert permutes == ((10 if gated and not bias else 6) if layout.parallel else 0), (
            "gathers and sums, or sums alone"
        )
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5, atol=1e-5)


def test_devices_hide_what_they_send_of_many_tokens_alone() -> None:
    four = layout_of()
    assert four.square(2048, platform="tpu") == TENSOR
    assert four.square(1024, platform="tpu") is None
    assert four.square(2048, platform="cpu") is None
    assert layout_of(8).square(4096, platform="tpu") is None
    assert Layout().square(2048, platform="tpu") is None
    assert sharding.share_tokens(jax.devices()[:4], data=4).square(2048, platform="tpu") is None, DATA
