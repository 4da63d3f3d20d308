"""The first mesh is given what its rows' last tokens came out of, and not what came out later."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxengine.contract.batch import ONE, Row, Rows
from jaxengine.device.runtime.handover import Handover
from jaxengine.device.runtime.inputs import FlatRows


@dataclass
class Place:
    replicated: Any


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
    space: Any = Space([Place(jax.sharding.SingleDeviceSharding(device)) for device in devices])
    return Handover(space, slots(0))


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
