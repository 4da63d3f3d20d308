"""Snapshots of states go to the host and come back bit for bit, and nothing else changes."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest

from jaxengine.contract.batch import FromHost, Move, ToHost
from jaxengine.device.runtime.block_moves import all_moved, block_bytes, launches_underway, move_programs, transit_bytes
from jaxengine.device.runtime.host_store import HostStore
from jaxengine.device.runtime.programs import step_programs
from tests.device.models.cases import Fixture
from tests.device.models.paged import PagedModel
from xla_cache import obtain


@pytest.fixture(scope="module")
def model() -> PagedModel:
    fixture = Fixture.load("lfm2")
    return PagedModel(fixture.config, fixture.tensors)


@pytest.mark.slow
def test_snapshots_come_back_as_they_left(model: PagedModel) -> None:
    space = dataclasses.replace(model.space, num_snapshots=3, host_blocks=(4, 2))
    programs = {program.name: obtain(program)[0] for program in move_programs(space)}
    assert set(programs) < set(step_programs(space, space.grid.buckets[0]))
    draw = np.random.default_rng(2)
    before = {
        name: draw.normal(size=struct.shape).astype(struct.dtype) for name, struct in sorted(space.snapshots.items())
    }
    held = [*model.runner.cache.pages, jax.tree.map(jax.numpy.asarray, before)]
    store = HostStore(space)

    def move(*moves: Move) -> None:
        nonlocal held
        held = list(store.move(moves, held, lambda name, *arguments: programs[name](*arguments)))

    move(ToHost(1, 1, 0), ToHost(1, 3, 1))
    move(FromHost(1, 0, 2), FromHost(1, 1, 1))
    for name, array in before.items():
        np.testing.assert_array_equal(held[1][name], array[:, [0, 3, 1, 3]])
    with pytest.raises(ValueError, match="block 2 is not among the 2"):
        move(ToHost(1, 1, 2))
    store.close()


@pytest.mark.slow
def test_a_launch_takes_a_single_snapshot_and_counts_its_bytes(model: PagedModel) -> None:
    space = dataclasses.replace(model.space, num_snapshots=3, host_blocks=(4, 2))
    pages, snapshots = all_moved(space)
    size = sum(
        array.nbytes // array.shape[1] for array in (np.empty(s.shape, s.dtype) for s in space.snapshots.values())
    )
    assert (pages.count, snapshots.count) == (16, 1)
    assert block_bytes(space)[1] == snapshots.shard_bytes == size
    assert transit_bytes(space) == 2 * launches_underway(space) * max(pages.shard_bytes, size)
