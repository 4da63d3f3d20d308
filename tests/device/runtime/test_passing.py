"""Arrays come from one mesh to the other as they were; between hosts by a program of both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxengine.device.layers.sharding import Layout, one_device, share_layers
from jaxengine.device.runtime.passing import Passage, Way
from xla_cache import Program


@dataclass
class Side:
    """As much of a program space as is looked at."""

    device_layout: Layout
    here: bool = True

    def program(self, name: str, function: Any, arguments: Any, **others: Any) -> Program:
        return Program(name, function, arguments, mesh=self.device_layout.mesh)


def passage(sides: list[Layout]) -> Passage:
    target = sides[1]
    structs = (
        jax.ShapeDtypeStruct((4, 6), jnp.float32, sharding=target.sharding(("tokens", "mlp"))),
        {"angles": jax.ShapeDtypeStruct((4,), jnp.int32, sharding=target.replicated)},
    )
    source_side, target_side = map(Side, sides)
    return Passage("pass", source_side, target_side, structs)  # type: ignore[arg-type]


def layouts(each: int) -> list[Layout]:
    devices = jax.devices()[: 2 * each]
    if each == 1:
        return [one_device(device) for device in devices]
    return [share_layers(devices[:each]), share_layers(devices[each:])]


def values() -> list[np.ndarray]:
    return [np.arange(24, dtype=np.float32).reshape(4, 6), np.arange(4, dtype=np.int32)]


@pytest.mark.parametrize("each", [1, 2])
def test_on_one_host_nothing_has_to_be_launched(each: int) -> None:
    given = passage(layouts(each))
    assert list(given.programs()) == []
    assert given.standing_bytes == 0
    stream, angles = values()
    moved = Way(given).take(None, (stream, {"angles": angles}))  # type: ignore[arg-type]
    for found, expected, struct in zip(jax.tree.leaves(moved), values(), jax.tree.leaves(given.structs), strict=True):
        np.testing.assert_array_equal(found, expected)
        assert found.sharding == struct.sharding


@pytest.mark.parametrize("each", [1, 2])
def test_between_hosts_the_first_half_comes_to_the_second(each: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Passage, "crosses", True)
    given = passage(layouts(each))
    [program] = given.programs()
    assert program.devices == jax.devices()[: 2 * each]
    both = [
        jax.device_put(np.concatenate([array, np.zeros_like(array)]), struct.sharding)
        for array, struct in zip(values(), given.both, strict=True)
    ]
    sent = program.lower().compile()(*both)
    for found, before, array, struct in zip(sent, both, values(), given.both, strict=True):
        assert found.shape == (2 * len(array), *array.shape[1:])
        np.testing.assert_array_equal(found[len(array) :], array)
        of_source = {shard.device for shard in before.addressable_shards if shard.index[0].start == 0}
        assert of_source <= {*jax.devices()[:each]}, "what lies on the first side's devices is the first half"
        assert found.sharding == struct.sharding
    assert given.standing_bytes == (4 * 6 // each + 4) * 4
