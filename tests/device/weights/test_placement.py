"""One host array on eight virtual devices, each with its own part and nothing more."""

from __future__ import annotations

import itertools
from typing import ClassVar

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.experimental.layout import Format, Layout
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

from jaxengine.device.weights.placement import ALIGNMENT, copy_part, empty_block, place
from jaxengine.device.weights.rules import Array

from .files import numbers


def mesh() -> jax.sharding.Mesh:
    return jax.sharding.Mesh(np.asarray(jax.devices()).reshape(2, 4), ("x", "y"))


@pytest.mark.parametrize(
    "spec", [(), ("x",), (None, "y"), ("x", "y"), (("x", "y"),), (None, ("y", "x")), ("y", "x")], ids=str
)
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16], ids=["float32", "bfloat16"])
def test_every_device_has_its_part(spec: tuple[object, ...], dtype: type) -> None:
    tensor = numbers(16, 24)
    sharding = NamedSharding(mesh(), PartitionSpec(*spec))
    placed = place(tensor, jax.ShapeDtypeStruct(tensor.shape, dtype, sharding=sharding))
    assert (placed.dtype, placed.shape, placed.sharding) == (dtype, tensor.shape, sharding)
    for shard in placed.addressable_shards:
        np.testing.assert_array_equal(np.asarray(shard.data), tensor[shard.index].astype(dtype))
    np.testing.assert_array_equal(np.asarray(placed), tensor.astype(dtype))


def test_a_layout_that_is_asked_for_is_kept() -> None:
    tensor = numbers(16, 24)
    turned = Format(Layout((1, 0)), NamedSharding(mesh(), PartitionSpec("x", "y")))
    placed = place(tensor, jax.ShapeDtypeStruct(tensor.shape, jnp.float32, sharding=turned))
    assert placed.format.layout.major_to_minor == (1, 0)
    np.testing.assert_array_equal(np.asarray(placed), tensor)


@pytest.mark.parametrize("shape", [(), (1,), (0, 3), (7, 3, 5)], ids=str)
def test_without_a_sharding_it_is_on_the_first_device(shape: tuple[int, ...]) -> None:
    tensor = numbers(*shape)
    placed = place(np.asarray(tensor), jax.ShapeDtypeStruct(shape, jnp.float32))
    assert placed.sharding == SingleDeviceSharding(jax.devices()[0])
    np.testing.assert_array_equal(np.asarray(placed), tensor)


def test_views_of_any_order_are_cut_right() -> None:
    tensor = numbers(24, 16).T
    sharding = NamedSharding(mesh(), PartitionSpec("x", "y"))
    placed = place(tensor, jax.ShapeDtypeStruct(tensor.shape, jnp.float32, sharding=sharding))
    np.testing.assert_array_equal(np.asarray(placed), tensor)


def test_the_result_does_not_follow_the_source() -> None:
    tensor = numbers(64, 64)
    placed = place(tensor, jax.ShapeDtypeStruct(tensor.shape, jnp.float32))
    before = tensor.copy()
    tensor[:] = 0
    np.testing.assert_array_equal(np.asarray(placed), before)


def test_a_block_is_aligned_so_that_the_cpu_adopts_it() -> None:
    """The memory bound on the CPU rests on this: a second copy of each tensor would break it."""
    for size in (1, 1000, 100_003):
        block = empty_block((size,), np.dtype(np.float32))
        block[:] = numbers(size)
        assert block.ctypes.data % ALIGNMENT == 0
        assert jax.device_put(block, jax.devices()[0]).unsafe_buffer_pointer() == block.ctypes.data


def test_small_blocks_lie_together() -> None:
    """In arrays for which there are large pages of memory; each has its own part."""
    blocks = [empty_block((1000, 1001), np.dtype(np.float32)) for _ in range(20)]
    for number, block in enumerate(blocks):
        block[:] = number
    assert all((block == number).all() for number, block in enumerate(blocks))
    starts = sorted(block.ctypes.data for block in blocks)
    assert sum(after - before < 1001 * 4008 for before, after in itertools.pairwise(starts)) >= 16


def test_each_shard_is_cut_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No full copy for a sharded tensor, one cut for devices that share a part."""
    from jaxengine.device.weights import placement

    cuts: list[tuple[int, ...]] = []

    def counted(tensor: Array, part: tuple[slice, ...], out: Array) -> None:
        cuts.append(out.shape)
        copy_part(tensor, part, out)

    monkeypatch.setattr(placement, "copy_part", counted)
    sharding = NamedSharding(mesh(), PartitionSpec(None, "y"))
    place(numbers(8, 8), jax.ShapeDtypeStruct((8, 8), jnp.float32, sharding=sharding))
    assert cuts == [(8, 2)] * 4


def test_what_is_made_is_made_part_by_part() -> None:
    class Squares:
        """`[8, 8]` of i * 8 + j, squared."""

        shape = (8, 8)
        asked: ClassVar[list[tuple[slice, ...]]] = []

        def fill(self, out: Array, part: tuple[slice, ...]) -> None:
            self.asked.append(part)
            out[:] = np.square(np.arange(64.0).reshape(8, 8))[part]

    sharding = NamedSharding(mesh(), PartitionSpec("x", None))
    placed = place(Squares(), jax.ShapeDtypeStruct((8, 8), jnp.float32, sharding=sharding))
    np.testing.assert_array_equal(np.asarray(placed), np.square(np.arange(64.0).reshape(8, 8)))
    assert sorted((rows.start, rows.stop) for rows, _ in Squares.asked) == [(0, 4), (4, 8)]
