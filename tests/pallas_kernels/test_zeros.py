"""Zeros: all of them are, also where the system makes them, and none takes memory before it is asked for."""

from __future__ import annotations

import resource
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import KernelUnsupported, zeros
from pallas_kernels.native import calling
from pallas_kernels.zeros.native import LEAST_BYTES

LARGE = (3, LEAST_BYTES // 3 + 5)


@pytest.mark.parametrize("dtype", [jnp.uint16, jnp.float32, jnp.uint32])
@pytest.mark.parametrize("shape", [(5,), LARGE])
def test_all_are_zero(native: str, shape: tuple[int, ...], dtype: jnp.dtype) -> None:
    with calling(native):
        make = jax.jit(lambda: zeros(shape, dtype, platform="cpu")).lower().compile()
    change = jax.jit(lambda given: given + jnp.ones((), dtype), donate_argnums=0)
    for _ in range(2):  # the second may lie where the first was
        made = make()
        assert made.shape == shape
        assert made.dtype == dtype
        assert not np.asarray(made).any()
        assert np.asarray(change(made)).all()


@pytest.mark.skipif(sys.platform != "linux", reason="what a process has of memory is read from Linux's /proc")
def test_large_ones_take_no_memory_before_they_are_asked_for(native: str) -> None:
    with calling(native):
        make = jax.jit(lambda: zeros((1 << 28,), jnp.int8, platform="cpu")).lower().compile()
    before = resident_bytes()
    made = jax.block_until_ready(make())
    assert resident_bytes() - before < 1 << 26
    assert int(made[12345]) == 0


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def test_small_ones_of_other_types_and_without_a_library_are_the_definition_s(native: str) -> None:
    with pytest.raises(KernelUnsupported, match="no library"):
        zeros(LARGE, jnp.float32, backend="native")
    with calling(native):
        with pytest.raises(KernelUnsupported, match="fewer than"):
            zeros((3,), jnp.float32, backend="native")
        with pytest.raises(KernelUnsupported, match="types"):
            zeros(LARGE, jnp.uint32, backend="native")
