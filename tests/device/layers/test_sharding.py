from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import PartitionSpec

from jaxengine.device.layers import sharding
from jaxengine.device.layers.context import ModelContext
from jaxengine.device.layers.embedding import Embedding
from jaxengine.device.layers.schemes.int8 import INT8
from jaxengine.device.layers.sharding import ONE_DEVICE
from jaxengine.errors import ConfigError


def test_axes_map_to_the_mesh():
    layout = sharding.share_layers(jax.devices()[:4])
    assert layout.partition(("heads", "embed")) == PartitionSpec(("expert", "tensor"), None)
    assert layout.partition(("embed", "mlp")) == PartitionSpec(None, ("expert", "tensor"))
    assert layout.partition(("experts", "expert_mlp", "embed")) == PartitionSpec("expert", "tensor", None)


@pytest.mark.parametrize(("expert_parallel", "experts", "inner"), [(False, 1, 4), (True, 4, 1)])
def test_devices_share_every_expert_or_have_whole_ones(expert_parallel, experts, inner):
    devices = jax.devices()[:4]
    layout = sharding.share_layers(devices, expert_parallel=expert_parallel)
    assert list(layout.mesh.devices.flat) == devices
    found = {axis: layout.shards(axis) for axis in ("heads", "mlp", "vocab", "experts", "expert_mlp", "embed")}
    assert found == {"heads": 4, "mlp": 4, "vocab": 4, "experts": experts, "expert_mlp": inner, "embed": 1}


@dataclass(frozen=True)
class Chip:
    coords: tuple[int, int, int]
    platform: str = "tpu"
    core_on_chip: int = 0


def test_tpus_share_layers_row_by_row_of_their_slice():
    hosts = [(0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (3, 0), (2, 1), (3, 1)]  # squares of two chips by two
    layout = sharding.share_layers([Chip((x, y, 0)) for x, y in hosts])
    assert [device.coords[:2] for device in layout.mesh.devices.flat] == [(x, y) for y in range(2) for x in range(4)]


def test_two_axes_on_one_mesh_axis_are_an_error():
    with pytest.raises(ValueError, match=r"\['heads', 'mlp'\] would both be split over mesh axis 'expert'"):
        sharding.share_layers(jax.devices()[:4]).partition(("heads", "embed", "mlp"))


def test_an_unknown_axis_is_an_error():
    with pytest.raises(ValueError, match=r"unknown logical axis 'haeds'"):
        ONE_DEVICE.partition(("haeds",))


def test_pages_are_split_in_whole_pairs_of_heads():
    layout = sharding.share_layers(jax.devices()[:4])
    pages = jnp.zeros((6, 2, 2 * 8, 4), device=layout.kv_sharding())
    shapes = {shard.data.shape for shard in pages.addressable_shards}
    starts = sorted(shard.index[2].start or 0 for shard in pages.addressable_shards)
    assert shapes == {(6, 2, 4, 4)}
    assert starts == [0, 4, 8, 12]


@pytest.mark.parametrize(
    ("size", "heads", "kv_heads", "mlp"), [(4, 8, 4, 64), (4, 8, 2, 64), (8, 8, 1, 64), (1, 7, 7, 13)]
)
def test_sizes_that_divide(size, heads, kv_heads, mlp):
    sharding.check_divisible(size, heads=heads, kv_heads=kv_heads, mlp=mlp)


@pytest.mark.parametrize(
    ("size", "heads", "kv_heads", "mlp"), [(4, 6, 2, 64), (4, 8, 8, 66), (4, 24, 6, 64), (16, 8, 8, 64)]
)
def test_sizes_that_do_not_divide_name_those_that_do(size, heads, kv_heads, mlp):
    with pytest.raises(ConfigError, match=rf"tensor_parallel_size={size} .*Use one of 1, 2"):
        sharding.check_divisible(size, heads=heads, kv_heads=kv_heads, mlp=mlp)


def test_without_a_mesh_nothing_is_split():
    assert ONE_DEVICE.shards("heads") == 1
    assert ONE_DEVICE.vocab_axis(97) == "vocab"
    x = jnp.ones(3)
    assert ONE_DEVICE.constrain(x, ("tokens",)) is x


@pytest.mark.parametrize("vocab", [16, 13])
def test_embedding_over_devices_finds_the_same_rows(vocab):
    """A token's row is on one device: the sum over devices must be exact, also where the table is whole."""
    table = np.random.default_rng(0).normal(size=(vocab, 4)).astype(np.float32)
    tokens = jnp.arange(vocab, dtype=jnp.int32)
    for devices in (1, 4):
        layout = sharding.ONE_DEVICE if devices == 1 else sharding.share_layers(jax.devices()[:devices])
        embedding = Embedding(vocab, 4, context=ModelContext(dtype=jnp.float32, platform="cpu", layout=layout))
        axes = embedding.table.get_metadata()["axes"]
        device = layout.sharding(axes)
        embedding.table.set_value(jnp.asarray(table, device=device))
        np.testing.assert_array_equal(embedding(tokens), table)
        np.testing.assert_allclose(embedding.logits(jnp.asarray(table[:3])), table[:3] @ table.T, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("vocab", [16, 13])
def test_a_table_in_int8_is_looked_up_and_multiplied_in_one_copy(vocab):
    numbers = np.random.default_rng(0)
    table = numbers.integers(-127, 128, size=(vocab, 4)).astype(np.int8)
    scales = numbers.uniform(0.01, 0.1, size=vocab).astype(np.float32)
    tokens, hidden = jnp.arange(vocab, dtype=jnp.int32), jnp.eye(4) * 127
    for devices in (1, 4):
        layout = sharding.ONE_DEVICE if devices == 1 else sharding.share_layers(jax.devices()[:devices])
        embedding = Embedding(
            vocab, 4, context=ModelContext(dtype=jnp.bfloat16, platform="cpu", layout=layout, scheme=INT8)
        )
        assert set(nnx.state(embedding)) == {"table", "scale"}
        for parameter, given in ((embedding.table, table), (embedding.scale, scales)):
            device = layout.sharding(parameter.get_metadata()["axes"])
            parameter.set_value(jnp.asarray(given, device=device))
        np.testing.assert_array_equal(embedding(tokens), table * scales[:, None])
        np.testing.assert_allclose(embedding.logits(hidden), 127 * (table * scales[:, None]).T, rtol=1e-6)
