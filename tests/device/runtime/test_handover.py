"""The first mesh is given what its rows' last tokens came out of, and not what came out later."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxengine.contract.rows import ONE, Row, Rows
from jaxengine.device.layers.sharding import one_device
from jaxengine.device.runtime import handover as module
from jaxengine.device.runtime.handover import Handover
from jaxengine.device.runtime.inputs import FlatRows


@dataclass
class Place:
    device: Any
    here: bool = True

    @property
    def device_layout(self) -> Any:
        return one_device(self.device)

    @property
    def replicated(self) -> Any:
        return jax.sharding.SingleDeviceSharding(self.device)

    def replicated_struct(self, shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=self.replicated)


@dataclass
class Space:
    """As much of a program space as is looked at."""

    views: list[Place]
    max_num_seqs: int = 4


@dataclass
class Slots:
    last_token: jax.Array


def slots(token: int) -> Any:
    return Slots(jnp.full(5, token, jnp.int32))


def rows(*unknown: int) -> FlatRows:
    return FlatRows.of(Rows([Row(slot, None, 1, 7, ONE) for slot in unknown]), num_slots=5)


def handover(meshes: int) -> Handover:
    devices = jax.devices()[:meshes]
    space: Any = Space([Place(device) for device in devices])
    return Handover(space, slots(0), None)  # type: ignore[arg-type]


def test_a_step_is_given_the_step_that_sampled_its_rows() -> None:
    found = handover(2)
    for number, sampled in enumerate(([1, 2], [3, 4], [1]), 1):
        found.keep(number, np.array(sampled, np.int32), slots(number))
    expected = {(2,): 1, (3, 4): 2, (1,): 3, (2, 3): 2}
    assert {given: int(found.last_token(rows(*given), slots(9))[0]) for given in expected} == expected
    assert found.last_token(rows(2), slots(9)).devices() == {jax.devices()[0]}
    assert int(found.newest(slots(9))[0]) == 3


def test_what_no_step_in_flight_needs_is_let_go() -> None:
    found = handover(2)
    for number in range(1, 9):
        found.keep(number, np.array([1 + number % 2], np.int32), slots(number))
    assert len(found._kept) == 4, "of as many steps as there are meshes, the next, and one more"
    assert int(found.last_token(rows(1), slots(9))[0]) == 8


def test_one_mesh_has_its_tokens_itself() -> None:
    found = handover(1)
    found.keep(1, np.array([1], np.int32), slots(1))
    assert int(found.last_token(rows(1), slots(5))[0]) == 5


@pytest.mark.parametrize("unknown", [(), (1,)])
def test_rows_of_a_prompt_wait_for_nothing(unknown: tuple[int, ...]) -> None:
    found = handover(2)
    found.keep(1, np.array([1], np.int32), slots(1))
    known = FlatRows.of(
        Rows([Row(2, (5, 6), 2, 0, None), *(Row(slot, None, 1, 7, ONE) for slot in unknown)]), num_slots=5
    )
    assert int(found.last_token(known, slots(9))[0]) == len(unknown)


class Ways:
    """Stands for a way between hosts. What comes are the tokens of the newest slots."""

    crosses = True

    def __init__(self, passage: Any) -> None:
        self.taken = 0

    def take(self, call: Any, values: Any) -> Any:
        self.taken += 1
        return values


def between_hosts(monkeypatch: pytest.MonkeyPatch, *, here: int) -> tuple[Handover, Any]:
    monkeypatch.setattr(module, "Way", Ways)
    space: Any = Space([Place(jax.devices()[0], here=host == here) for host in range(2)])
    found = Handover(space, slots(0), None)  # type: ignore[arg-type]
    return found, found._way


@pytest.mark.parametrize("here", [0, 1])
def test_between_hosts_tokens_come_once_on_both_sides_alike(here: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the next step is about to come to the last host, or before where one of its rows begins with them."""
    found, way = between_hosts(monkeypatch, here=here)

    def token(*begin: int) -> int | None:
        tokens = found.last_token(rows(*begin), slots(1))
        return None if tokens is None else int(tokens[0])

    found.keep(1, np.array([1], np.int32), slots(1))
    assert (token(2), way.taken) == (None if here else 0, 0)
    found.bring(slots(1))
    found.bring(slots(1))
    assert (token(1), way.taken) == (None if here else 1, 1)
    found.keep(2, np.array([2], np.int32), slots(2))
    assert way.taken == 1
    assert found.last_token(rows(2), slots(2)) is None or not here
    assert way.taken == 2
    found.bring(slots(2))
    assert way.taken == 2
