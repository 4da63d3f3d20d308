from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxengine.layers.context import ModelContext
from jaxengine.layers.linear import Linear, mean_last, project


def context(dtype, platform="cpu"):
    return ModelContext(dtype=jnp.dtype(dtype), platform=platform)


@pytest.mark.parametrize("rows", [1, 2, 3, 7])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_products_are_summed_in_float32(dtype, rows):
    generator = np.random.default_rng(rows)
    x = jnp.asarray(generator.normal(size=(rows, 64)), dtype)
    weight = jnp.asarray(generator.normal(size=(32, 64)), dtype)
    found = project(x, weight, context=context(dtype))
    assert found.dtype == jnp.float32
    exact = np.asarray(x, np.float64) @ np.asarray(weight, np.float64).T
    np.testing.assert_allclose(found, exact, atol=2e-5)


@pytest.mark.parametrize(
    ("platform", "dtype", "rows"),
    [("cpu", jnp.bfloat16, 2), ("cpu", jnp.float32, 2), ("tpu", jnp.bfloat16, 1)],
)
def test_one_row_is_padded_only_on_the_cpu(platform, dtype, rows):
    weight = jax.ShapeDtypeStruct((32, 64), dtype)
    x = jax.ShapeDtypeStruct((1, 64), jnp.float32)
    text = str(jax.make_jaxpr(lambda x, w: project(x, w, context=context(dtype, platform)))(x, weight))
    product = next(line for line in text.splitlines() if "dot_general" in line)
    assert f":f32[{rows},32]" in product


@pytest.mark.parametrize(
    ("platform", "dtype", "activation"),
    [
        ("cpu", jnp.bfloat16, jnp.float32),
        ("tpu", jnp.bfloat16, jnp.bfloat16),
        ("gpu", jnp.float16, jnp.float16),
        ("tpu", jnp.float32, jnp.float32),
    ],
)
def test_activations_are_wide_on_the_cpu_alone(platform, dtype, activation):
    linear = Linear(4, 3, axes=("mlp", "embed"), bias=True, context=context(dtype, platform))
    assert linear(jnp.ones((2, 4), activation)).dtype == activation


def test_float32_asks_for_float32_arithmetic():
    """A TPU multiplies float32 in bfloat16, and a GPU in TF32, unless it is told not to."""
    assert context(jnp.float32, "tpu").precision == jax.lax.Precision.HIGHEST
    assert context(jnp.bfloat16, "tpu").precision == jax.lax.Precision.DEFAULT


def test_an_unknown_platform_is_refused():
    with pytest.raises(ValueError, match="platform must be one of cpu, gpu, tpu, got 'cuda'"):
        context(jnp.float32, "cuda")


def test_a_parameter_needs_a_name_per_axis():
    with pytest.raises(ValueError, match="needs 2 axis names"):
        context(jnp.float32).parameter((2, 3), ("embed",))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("size", [64, 100, 256])
def test_a_row_is_the_same_to_the_last_bit_beside_any_others(dtype, size):
    cpu = context(dtype, "cpu")
    generator = np.random.default_rng(size)
    x = jnp.asarray(generator.normal(size=(33, size)), jnp.float32)
    weight = jnp.asarray(generator.normal(size=(48, size)), dtype)

    def layer(x: jax.Array, weight: jax.Array) -> jax.Array:
        return project(x * jax.lax.rsqrt(mean_last(x * x, context=cpu)), weight, context=cpu)

    whole = np.asarray(jax.jit(layer)(x, weight))
    for rows in (1, 2, 3, 4, 7, 16, 17):
        np.testing.assert_array_equal(np.asarray(jax.jit(layer)(x[:rows], weight)), whole[:rows])
