"""Random weights: the same for a seed whatever the sharding, and of a scale that a model survives."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jaxengine.device.weights.dummy import BLOCK, RandomTensors, own_rules
from jaxengine.device.weights.loader import load
from jaxengine.device.weights.report import LoadReport, Progress

SHAPES = {
    "embed.table": (512, 64),
    "layers.0.w": (64, 256),
    "layers.1.w": (64, 256),
    "norm.scale": (64,),
    "q.bias": (64,),
}


def parameters(*, sharded: bool = False, dtype: np.typing.DTypeLike = np.float32) -> dict[str, jax.ShapeDtypeStruct]:
    mesh = jax.sharding.Mesh(np.asarray(jax.devices()), ("tensor",))
    sharding = NamedSharding(mesh, PartitionSpec("tensor")) if sharded else None
    return {path: jax.ShapeDtypeStruct(shape, jnp.dtype(dtype), sharding=sharding) for path, shape in SHAPES.items()}


def dummy(
    wanted: dict[str, jax.ShapeDtypeStruct], *, seed: int, progress: Progress | None = None
) -> dict[str, jax.Array]:
    return load(RandomTensors(wanted, seed=seed), own_rules(wanted), wanted, None, progress=progress)


def test_equal_seeds_are_equal_whatever_the_sharding() -> None:
    one, eight = dummy(parameters(), seed=3), dummy(parameters(sharded=True), seed=3)
    assert list(one) == list(eight) == list(SHAPES)
    for path in SHAPES:
        np.testing.assert_array_equal(np.asarray(one[path]), np.asarray(eight[path]))
        assert len(eight[path].sharding.device_set) == 8


def test_seeds_and_tensors_differ() -> None:
    first, second = dummy(parameters(), seed=0), dummy(parameters(), seed=1)
    assert not np.array_equal(np.asarray(first["layers.0.w"]), np.asarray(second["layers.0.w"]))
    assert not np.array_equal(np.asarray(first["layers.0.w"]), np.asarray(first["layers.1.w"]))


def test_the_values_never_change() -> None:
    """Benchmarks of different versions run the same model. Raw Philox words and float32 products are all there is to it."""
    value = np.asarray(dummy({"w": jax.ShapeDtypeStruct((2, 2), jnp.float32)}, seed=0)["w"])
    assert value.tolist() == [[0.29011502861976624, -0.3875340223312378], [0.7789909839630127, 1.0628525018692017]]


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_activations_keep_their_size(dtype: type) -> None:
    weights = {path: np.asarray(array, np.float32) for path, array in dummy(parameters(dtype=dtype), seed=0).items()}
    x = np.random.default_rng(0).normal(size=(100, 256)).astype(np.float32)
    assert 0.9 < (x @ weights["layers.0.w"].T).std() < 1.1
    assert 0.97 < weights["norm.scale"].min() <= weights["norm.scale"].max() < 1.03
    assert abs(weights["q.bias"]).max() < 0.03


def test_no_two_rows_are_equal() -> None:
    """Equal rows of an embedding would tie logits. More numbers than the block has, in rows of a power of two."""
    rows = BLOCK // 1024 * 2 + 10
    table = np.asarray(dummy({"t": jax.ShapeDtypeStruct((rows, 1024), jnp.float32)}, seed=0)["t"])
    assert len(np.unique(table[:, :4], axis=0)) == rows


def test_progress() -> None:
    reports: list[LoadReport] = []
    dummy(parameters(), seed=0, progress=reports.append)
    assert reports[-1].num_read == reports[-1].num_tensors == len(SHAPES)
    assert reports[-1].bytes_read == reports[-1].total_bytes


def test_paths_that_differ_in_numbers_are_one_rule() -> None:
    struct = jax.ShapeDtypeStruct((2, 3), jnp.float32)
    rules = own_rules(dict.fromkeys(("embed.table", "layers.0.w", "layers.1.w", "layers.10.w", "layers.1.w2"), struct))
    assert [rule.target for rule in rules] == ["embed.table", "layers.*.w", "layers.*.w2"]


def test_matrices_of_experts_are_stacked_and_those_of_heads_lie_as_they_are() -> None:
    shapes = {"experts.up.weight": (3, 64, 32), "attention.keys": (3, 12, 48)}
    wanted = {path: jax.ShapeDtypeStruct(shape, jnp.float32) for path, shape in shapes.items()}
    assert {name: tensor.shape for name, tensor in RandomTensors(wanted, seed=0).tensors.items()} == {
        **{f"experts.up.weight.{number}": (32, 64) for number in range(3)},
        "attention.keys": (3, 12, 48),
    }
    keys = {"attention.keys": wanted["attention.keys"]}
    x = np.random.default_rng(0).normal(size=(100, 48)).astype(np.float32)
    assert 0.9 < (x @ np.asarray(dummy(keys, seed=0)["attention.keys"])[1].T).std() < 1.1


def test_layers_of_experts_and_others_may_share_a_name() -> None:
    """As in Jamba and MiMo V2, whose layers of either kind have their matrices in the same places."""
    shapes = {f"layers.{layer}.up.weight": (32, 32) if layer == 1 else (3, 32, 32) for layer in range(3)}
    made = dummy({path: jax.ShapeDtypeStruct(shape, jnp.float32) for path, shape in shapes.items()}, seed=0)
    assert {path: array.shape for path, array in made.items()} == shapes
