from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxengine.device.layers.context import ModelContext
from jaxengine.device.layers.linear import Linear, project
from jaxengine.device.layers.schemes.int8 import Int8
from jaxengine.device.layers.schemes.scaled import INT4, Scaled
from jaxengine.device.layers.sharding import Layout, share_layers


def context(dtype, platform="cpu", **options):
    return ModelContext(dtype=jnp.dtype(dtype), platform=platform, **options)


@pytest.mark.parametrize("rows", [1, 2, 3, 7])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_products_are_summed_in_float32(dtype, rows):
    generator = np.random.default_rng(rows)
    x = jnp.asarray(generator.normal(size=(rows, 64)), dtype)
    linear = Linear(64, 32, axes=("mlp", "embed"), bias=False, context=context(dtype))
    linear.weight.set_value(jnp.asarray(generator.normal(size=(32, 64)), dtype))
    found = linear.multiply(x)
    assert found.dtype == jnp.float32
    exact = np.asarray(x, np.float64) @ np.asarray(linear.weight[...], np.float64).T
    np.testing.assert_allclose(found, exact, atol=2e-5)


@pytest.mark.parametrize(
    ("platform", "dtype", "activation"),
    [
        ("cpu", jnp.bfloat16, jnp.float32),
        ("tpu", jnp.bfloat16, jnp.bfloat16),
        ("gpu", jnp.float16, jnp.float16),
        ("tpu", jnp.float32, jnp.float32),
    ],
)
@pytest.mark.parametrize("options", [{}, {"scheme": Int8()}], ids=["dense", "int8"])
def test_activations_are_wide_on_the_cpu_alone(platform, dtype, activation, options):
    linear = Linear(4, 3, axes=("mlp", "embed"), bias=True, context=context(dtype, platform, **options))
    assert linear(jnp.ones((2, 4), activation), None).dtype == activation


def test_the_bias_is_added_to_what_the_scheme_multiplies():
    linear = Linear(2, 3, axes=("mlp", "embed"), bias=True, context=context(jnp.float32, scheme=Int8()))
    linear.weight.set_value(jnp.asarray([[127, 0], [0, 127], [127, 127]], jnp.int8))
    linear.scale.set_value(jnp.asarray([1 / 127, 2 / 127, 0.0]))
    linear.bias.set_value(jnp.asarray([10.0, 20.0, 30.0]))
    np.testing.assert_allclose(linear(jnp.asarray([[1.0, -1.0]]), None), [[11.0, 18.0, 30.0]], rtol=1e-6)


def test_a_matrix_is_found_under_its_own_name_whatever_is_kept_of_it():
    """Weight tables, converted checkpoints and random weights go by these names."""

    def paths(**options):
        linear = Linear(4, 3, axes=("mlp", "embed"), bias=True, context=context(jnp.bfloat16, **options))
        return {".".join(path): leaf.dtype.name for path, leaf in nnx.to_flat_state(nnx.state(linear))}

    assert paths() == {"weight": "bfloat16", "bias": "bfloat16"}
    assert paths(scheme=Int8()) == {"weight": "int8", "scale": "float32", "bias": "bfloat16"}


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


@pytest.mark.parametrize("options", [{}, {"scheme": Int8()}, {"scheme": INT4}], ids=["dense", "int8", "int4"])
@pytest.mark.parametrize("biases", [(False, False), (True, True), (True, False)])
def test_projections_of_one_input_are_those_of_each(options, biases):
    generator, given = np.random.default_rng(0), context(jnp.bfloat16, **options)
    linears = [
        Linear(64, outputs, axes=("mlp", "embed"), bias=bias, context=given)
        for outputs, bias in zip((32, 16), biases, strict=True)
    ]
    for linear in linears:
        for _, parameter in nnx.state(linear).flat_state():
            values = generator.normal(size=parameter.shape) * 3
            parameter.set_value(jnp.asarray(values, parameter.dtype))
    x = jnp.asarray(generator.normal(size=(3, 64)), jnp.bfloat16)
    for found, linear in zip(project(x, None, *linears), linears, strict=True):
        np.testing.assert_array_equal(found, linear(x, None))


@pytest.mark.parametrize("axes", [("head_dim", "embed"), ("mlp", "embed"), ("embed", "mlp")], ids=str)
@pytest.mark.parametrize("scheme", [None, Scaled(dtype="float8_e4m3fn", group=16)], ids=["dense", "float8"])
def test_devices_that_split_the_stream_multiply_as_one(axes, scheme, monkeypatch):
    """Each its own tokens with a matrix that all have; sums go to the device of each token."""
    monkeypatch.setattr(Layout, "splits_stream", lambda layout, tokens, *, platform: layout.mesh is not None)
    layout, x = (
        share_layers(jax.devices()[:4]),
        jnp.asarray(np.random.default_rng(0).normal(size=(16, 64)), jnp.float32),
    )
    options = {} if scheme is None else {"scheme": scheme}
    linears = [
        Linear(64, 32, axes=axes, bias=False, context=context(jnp.float32, **of, **options))
        for of in ({}, {"layout": layout})
    ]
    for linear in linears:
        for name, array in linear.arrays().items():
            values = np.random.default_rng(len(name)).normal(size=array.shape)
            getattr(linear, name).set_value(jnp.asarray(values, array.dtype))
    alone = linears[0](x, None)
    with jax.set_mesh(layout.mesh):
        found = jax.jit(lambda x: linears[1](x, None))(x)
        parts = linears[1].parts(x, None)
    np.testing.assert_allclose(found, alone, rtol=1e-5, atol=1e-4)
    assert found.addressable_shards[0].data.shape[0] == (16 if axes[0] == "mlp" else 4)
    assert (parts is None) == (axes != ("embed", "mlp"))
    if parts is not None:
        np.testing.assert_allclose(parts.sum(axis=0), alone, rtol=1e-5, atol=1e-4)
