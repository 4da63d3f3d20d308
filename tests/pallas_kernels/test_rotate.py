"""Every backend of `rotate` turns each pair of channels like a complex number."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pallas_kernels import KernelUnsupported, rotate
from pallas_kernels.check import TOPOLOGIES, devices
from pallas_kernels.native import calling
from pallas_kernels.rotate.tpu_kernel import BLOCK, takes
from pallas_kernels.tpu.chip import simulated_tpu
from tests.pallas_kernels.simulation import checked_tpu
from tests.quick import at_once, rare_but, slow_but
from tests.targets.tpu import available

OFTEN = {"32x128", "136x128", "8x64"}


@pytest.mark.parametrize("backend", ["reference", "tpu"])
@pytest.mark.parametrize(("tokens", "dtype"), [(1, "float32"), (12, "bfloat16"), (16, "float32"), (16, "bfloat16")])
def test_pairs_of_channels_turn_by_their_angle(tokens: int, dtype: str, backend: str) -> None:
    rng = np.random.default_rng(0)
    angles = rng.uniform(0, 2 * np.pi, size=(tokens, 1, 4))
    x = jnp.asarray(rng.normal(size=(tokens, 3, 8)), dtype)
    cos, sin = (jnp.asarray(part(angles), jnp.float32) for part in (np.cos, np.sin))
    found = at_once(rotate, x, cos, sin, backend=backend)
    pairs = np.asarray(x, np.float64)
    turned = (pairs[..., :4] + 1j * pairs[..., 4:]) * np.exp(1j * angles)
    assert found.dtype == x.dtype
    tolerance = 1e-2 if dtype == "bfloat16" else 1e-6
    expected = np.concatenate([turned.real, turned.imag], axis=-1)
    np.testing.assert_allclose(np.asarray(found, np.float64), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("tokens", "heads", "size"), [(1, 3, 8), (12, 2, 72), (9, 1, 128), (700, 3, 128)])
def test_the_cpu_turns_heads_in_one_pass(native: str, tokens: int, heads: int, size: int) -> None:
    """Of halves that fill no vector, and of several tasks; a token as it is turned alone."""
    rng = np.random.default_rng(0)
    angles = rng.uniform(0, 2 * np.pi, size=(tokens, 1, size // 2))
    x = jnp.asarray(rng.normal(size=(tokens, heads, size)), jnp.float32)
    cos, sin = (jnp.asarray(part(angles), jnp.float32) for part in (np.cos, np.sin))
    with calling(native):
        turn = jax.jit(lambda *given: rotate(*given, platform="cpu"))
        assert "ffi_call[" in str(jax.make_jaxpr(turn)(x, cos, sin))
        found = turn(x, cos, sin)
        alone = turn(x[-1:], cos[-1:], sin[-1:])
        with pytest.raises(KernelUnsupported, match="x, cos and sin are bfloat16, float32 and float32"):
            rotate(x.astype(jnp.bfloat16), cos, sin, backend="native")
    np.testing.assert_allclose(found, rotate(x, cos, sin, backend="reference"), atol=1e-6)
    np.testing.assert_array_equal(alone, found[-1:])
    with pytest.raises(KernelUnsupported, match="no library is registered"):
        rotate(x, cos, sin, backend="native")


def test_arguments_that_do_not_fit_name_the_axis() -> None:
    with pytest.raises(ValueError, match=r"axis H \(head size\) differs: 8 in x, 6 in cos, 6 in sin"):
        rotate(jnp.ones((2, 3, 8)), jnp.ones((2, 1, 3)), jnp.ones((2, 1, 3)))


@pytest.mark.parametrize(("heads", "size"), slow_but([(2, 128), (8, 128), (8, 64)], {(2, 128)}, several=True))
def test_many_heads_turn_on_their_way_to_attention(heads: int, size: int) -> None:
    """What a TPU's kernel gives, on a simulated one, where it has more than one block."""
    rng = np.random.default_rng(0)
    angles = rng.uniform(0, 2 * np.pi, size=(2 * BLOCK, 1, size // 2))
    x = jnp.asarray(rng.normal(size=(2 * BLOCK, heads, size)), jnp.bfloat16)
    cos, sin = (jnp.asarray(part(angles), jnp.float32) for part in (np.cos, np.sin))
    expected = np.asarray(at_once(rotate, x, cos, sin, backend="reference"), np.float32)
    with checked_tpu():
        found = np.asarray(rotate(x, cos, sin, projected=True, backend="tpu"), np.float32)
    np.testing.assert_allclose(found, expected, rtol=2**-7, atol=1e-6)  # some are rounded to a neighbour


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((64, 8, 128), "bfloat16"), ((128, 3, 128), "bfloat16"), ((128, 4, 64), "bfloat16"), ((128, 8, 128), "float32")],
)
def test_others_are_left_to_the_compiler(shape: tuple[int, ...], dtype: str) -> None:
    with simulated_tpu(pltpu.InterpretParams()):
        assert takes(jax.ShapeDtypeStruct((BLOCK, 8, 128), jnp.bfloat16))
        assert not takes(jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)))
    assert not takes(jax.ShapeDtypeStruct((BLOCK, 8, 128), jnp.bfloat16)), "this is no TPU"


@pytest.mark.tpu_compile
@pytest.mark.parametrize("shape", rare_but(["32x128", "2x128", "4x128", "8x128", "24x128", "136x128", "8x64"], OFTEN))
@pytest.mark.parametrize("target", rare_but(TOPOLOGIES, {"v5e", "v6e"}))
def test_the_tpu_compiler_takes_the_kernel(target: str, shape: str) -> None:
    """And lays nothing anew before attention, which takes heads as they come."""
    available("v6e-1")
    heads, size = map(int, shape.split("x"))
    mesh = Mesh(np.asarray(devices(target, 1)), ("tensor",))
    whole = NamedSharding(mesh, PartitionSpec())

    def given(*shape: int, dtype: str) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype), sharding=whole)

    def turned(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
        found = rotate(x.reshape(len(x), heads, size), cos, sin, projected=True, backend="tpu")
        return jnp.pad(found, ((0, 0), (0, 0), (0, 128 - size)))  # as attention takes them

    angles = given(256, 1, size // 2, dtype="float32")
    with jax.set_mesh(mesh):
        traced = jax.jit(turned).trace(given(256, size * heads, dtype="bfloat16"), angles, angles)
        hlo = traced.lower(lowering_platforms=("tpu",)).compile().as_text()
    assert hlo.count("tpu_custom_call") == 1
    assert not re.search(rf"bf16\[256,{heads},{size}\]\S* copy", hlo)
