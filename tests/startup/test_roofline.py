"""The least time of a step: bytes of the weights as they are kept, operations at the rate of their type."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from jaxengine.startup.roofline import NominalSpeed, Roofline
from pallas_kernels import coded_shape

SPEED = NominalSpeed(memory_bandwidth=1e6, matrix_flops=1e6, int8_ops=4e6)
VOCAB, WIDTH = 100, 10


def roofline(dtype: object, *, num_devices: int = 1, head: bool = False) -> Roofline:
    tables = ("embed.table", "head.table")[: 1 + head]
    parameters = {name: jax.ShapeDtypeStruct((VOCAB, WIDTH), jnp.bfloat16) for name in tables}
    parameters["layers.0.up.weight"] = jax.ShapeDtypeStruct((50, WIDTH), dtype)
    return Roofline.of(parameters, SPEED, num_devices=num_devices)


@pytest.mark.parametrize(("dtype", "nbytes", "rate"), [(jnp.bfloat16, 1000, 1e6), (jnp.int8, 500, 4e6)])
def test_a_matrix_is_read_and_multiplied_as_it_is_kept(dtype, nbytes, rate):
    found = roofline(dtype)
    assert found.floor(1, sampling=False) == (pytest.approx(max(nbytes / 1e6, 2 * 500 / rate)), "memory")
    assert found.floor(1000, sampling=False) == (pytest.approx(1000 * 2 * 500 / rate), "compute")


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.int8])
def test_the_head_is_not_what_matrices_are(dtype):
    assert roofline(dtype).floor(1000, sampling=True) == (pytest.approx(1000 * 2 * VOCAB * WIDTH / 1e6), "compute")
    assert roofline(dtype, head=True).head_bytes == 2 * VOCAB * WIDTH


def test_a_table_in_int8_is_read_with_its_scales_and_multiplied_as_integers():
    parameters = {
        "head.table": jax.ShapeDtypeStruct((VOCAB, WIDTH), jnp.int8),
        "head.scale": jax.ShapeDtypeStruct((VOCAB,), jnp.float32),
        "embed.table": jax.ShapeDtypeStruct((VOCAB, WIDTH), jnp.bfloat16),
        "embed_beside.table": jax.ShapeDtypeStruct((VOCAB, WIDTH), jnp.bfloat16),
    }
    found = Roofline.of(parameters, SPEED, num_devices=1)
    assert (found.head_bytes, found.layer_bytes) == (VOCAB * WIDTH + 4 * VOCAB, 0)
    assert found.floor(10_000, sampling=True)[0] == pytest.approx(10_000 * 2 * VOCAB * WIDTH / 4e6, rel=0.5)


def test_of_a_coded_matrix_heads_and_three_quarters_are_read():
    coded = {"layers.0.up.weight": jax.ShapeDtypeStruct(coded_shape(50, 256), jnp.uint16)}
    found = Roofline.of(coded, SPEED, num_devices=1)
    assert found.layer_bytes == 50 * (64 + 256 * 3 // 2)
    assert found.layer_s == pytest.approx(2 * 50 * 256 / 1e6)


def test_devices_share_the_multiplying():
    one, four = (
        roofline(jnp.int8).floor(1000, sampling=False),
        roofline(jnp.int8, num_devices=4).floor(1000, sampling=False),
    )
    assert one[0] == pytest.approx(4 * four[0])


def test_of_experts_those_that_are_likely_to_be_chosen_are_read():
    parameters = {"layers.0.mlp.gate.weight": jax.ShapeDtypeStruct((8, 5, 10), jnp.bfloat16)}
    speed = NominalSpeed(memory_bandwidth=1e6, matrix_flops=1e7, int8_ops=1e7)
    found = Roofline.of(parameters, speed, num_devices=1, chosen=0.25)
    for tokens, share in ((1, 0.25), (2, 0.4375), (3, 0.578125)):
        assert found.floor(tokens, sampling=False) == (pytest.approx(800 * share / 1e6), "memory")
    assert found.floor(10_000, sampling=False) == (pytest.approx(10_000 * 0.25 * 2 * 400 / 1e7), "compute")
