from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxengine.device.layers.context import ModelContext
from jaxengine.device.layers.linear import Linear
from jaxengine.device.layers.norm import LayerNorm, RMSNorm
from jaxengine.device.layers.schemes.dense import Dense
from jaxengine.device.layers.schemes.int8 import Int8
from tests.quick import slow_but

X = np.random.default_rng(0).normal(3.0, 2.0, size=(5, 16))
SCALE = np.linspace(0.5, 2.0, 16)


def context(dtype=jnp.float32, platform="cpu"):
    return ModelContext(dtype=jnp.dtype(dtype), platform=platform)


def test_rms_norm():
    norm = RMSNorm(16, epsilon=0.1, context=context())
    norm.scale.set_value(jnp.asarray(SCALE, jnp.float32))
    expected = X / np.sqrt((X**2).mean(-1, keepdims=True) + 0.1) * SCALE
    np.testing.assert_allclose(norm(jnp.asarray(X, jnp.float32)), expected, rtol=1e-5)


@pytest.mark.parametrize("affine", [True, False])
def test_layer_norm(affine):
    norm = LayerNorm(16, epsilon=0.1, affine=affine, context=context())
    expected = (X - X.mean(-1, keepdims=True)) / np.sqrt(X.var(-1, keepdims=True) + 0.1)
    if affine:
        norm.scale.set_value(jnp.asarray(SCALE, jnp.float32))
        norm.bias.set_value(jnp.asarray(SCALE - 1, jnp.float32))
        expected = expected * SCALE + SCALE - 1
    np.testing.assert_allclose(norm(jnp.asarray(X, jnp.float32)), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("make", [RMSNorm, lambda *a, **k: LayerNorm(*a, affine=False, **k)])
def test_large_16_bit_values_do_not_overflow(make):
    norm = make(4, epsilon=1e-6, context=context(jnp.float16, "gpu"))
    found = norm(jnp.asarray([[300.0, -300.0, 300.0, -300.0]], jnp.float16))
    assert found.dtype == jnp.float16
    assert bool(jnp.isfinite(found).all())


@pytest.mark.parametrize("size", [16, 64, 80])
@pytest.mark.parametrize("make", [RMSNorm, lambda *a, **k: LayerNorm(*a, affine=False, **k)])
def test_a_head_is_the_same_to_the_last_bit_beside_any_others(make, size):
    """Two norms in one program, as of queries and keys: XLA then shares and turns round what they have in common."""
    norms = [make(size, epsilon=1e-6, context=context()) for _ in range(2)]
    pair = jax.jit(lambda q, k: [norm(x) for norm, x in zip(norms, (q, k), strict=True)])
    generator = np.random.default_rng(size)
    q, k = (generator.normal(size=(256, heads, size)).astype(np.float32) for heads in (8, 2))
    whole = [np.asarray(result) for result in pair(q, k)]  # to cut a row out of JAX's array is a program
    for rows in (2, 3, 4, 7, 16, 64):
        for start in range(0, 256 - rows, 16):
            part = slice(start, start + rows)
            for found, expected in zip(pair(q[part], k[part]), whole, strict=True):
                np.testing.assert_array_equal(found, expected[part])


@pytest.mark.parametrize("dtype", slow_but([jnp.float32, jnp.bfloat16], {jnp.bfloat16}))
@pytest.mark.parametrize("scheme", [Dense(), Int8()], ids=str)
@pytest.mark.parametrize("size", slow_but([64, 100, 256], {100}))
def test_a_normalised_product_is_the_same_to_the_last_bit_beside_any_others(dtype, scheme, size):
    """What a layer does, as one program: norm, product, bias."""
    cpu = ModelContext(dtype=jnp.dtype(dtype), platform="cpu", scheme=scheme)
    generator = np.random.default_rng(size)
    norm = RMSNorm(size, epsilon=1e-5, context=cpu)
    linear = Linear(size, 48, axes=("mlp", "embed"), bias=True, context=cpu)
    for parameter in jax.tree.leaves(nnx.state(linear), is_leaf=lambda leaf: isinstance(leaf, nnx.Variable)):
        values = generator.normal(scale=40, size=parameter.shape)
        parameter.set_value(jnp.asarray(values).astype(parameter.dtype))
    norm.scale.set_value(jnp.asarray(generator.normal(size=size)).astype(dtype))
    x = jnp.asarray(generator.normal(size=(33, size)), jnp.float32)
    layer = nnx.jit(lambda norm, linear, x: linear(norm(x), None))
    whole = np.asarray(layer(norm, linear, x))
    assert np.isfinite(whole).all()
    for rows in (1, 2, 3, 4, 7, 16, 17):
        np.testing.assert_array_equal(np.asarray(layer(norm, linear, x[:rows])), whole[:rows])
