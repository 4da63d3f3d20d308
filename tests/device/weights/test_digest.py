import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxengine.device.weights.digest import array_digests, weights_digest


def parameters():
    return {"embed": jnp.arange(24, dtype=jnp.bfloat16).reshape(4, 6), "norm.scale": jnp.ones(3, jnp.float32)}


def digest(arrays):
    return weights_digest(array_digests(arrays))


def test_equal_numbers_have_equal_digests_whoever_made_them():
    assert digest(parameters()) == digest(dict(reversed(parameters().items())))


@pytest.mark.parametrize(
    "change",
    [
        lambda found: {**found, "embed": found["embed"].at[3, 5].add(jnp.bfloat16(0.125))},
        lambda found: {**found, "embed": found["embed"].reshape(6, 4)},
        lambda found: {**found, "norm.scale": jax.lax.bitcast_convert_type(found["norm.scale"], jnp.int32)},
        lambda found: {"embed": found["embed"], "norm.other": found["norm.scale"]},
        lambda found: {"embed": found["embed"]},
        lambda found: {**found, "norm.scale": jnp.asarray([1, 1, np.nextafter(np.float32(1), 2)])},
    ],
    ids=["a number", "shape", "type", "name", "fewer", "a bit"],
)
def test_whatever_differs_changes_it(change):
    assert digest(change(parameters())) != digest(parameters())


def test_of_an_array_that_devices_share_the_parts_count():
    devices = jax.devices()
    if len(devices) < 2:
        pytest.skip("needs two devices")
    mesh = Mesh(np.array(devices[:2]), ("x",))
    split = {"a": jax.device_put(jnp.arange(8.0), NamedSharding(mesh, PartitionSpec("x")))}
    changed = {"a": split["a"].at[7].set(0.0)}
    assert digest(split) == digest(dict(split))
    assert digest(split) != digest(changed)
