"""Layers with heads of two shapes have pages in two pools, and the answers are those of the pass written out."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import jax
import numpy as np
import pytest

from buckets import Bucket
from jaxengine.contract.batch import Batch, FromHost, Move, ToHost
from jaxengine.contract.rows import Rows
from jaxengine.device.runtime.block_moves import move_programs
from jaxengine.device.runtime.host_store import HostStore
from tests.device.models.paged import PagedModel
from tests.device.models.two_shapes import CONFIG, WINDOW, dense_logprobs, known, tensors
from xla_cache import obtain

CHUNK = 5
PROMPTS = [[3 + (7 * number + 5 * i) % 90 for i in range(length)] for number, length in enumerate((19, 1, 26, 7))]
MAX_ERROR = 1e-4
"""Of a log probability in float32, as a share of the logits' standard deviation."""


@pytest.fixture(autouse=True)
def _known() -> Iterator[None]:
    with known():
        yield


@pytest.fixture
def model() -> PagedModel:
    return PagedModel(CONFIG, tensors())


@pytest.mark.slow
def test_each_shape_has_a_pool(model: PagedModel) -> None:
    everything, windowed = model.space.cache.pools
    assert (everything.heads, everything.key, everything.windows, everything.lanes) == (2, 16, (None,), 2)
    assert (windowed.heads, windowed.key, windowed.windows, windowed.lanes) == (4, 8, (WINDOW,), 4)
    page_size = model.space.page_size
    assert [pages.shape for pages in model.runner.cache.pages] == [
        (2 * model.space.num_pages[0], page_size, 4, 16),
        (4 * model.space.num_pages[1], page_size, 8, 8),
    ]


@pytest.mark.slow
def test_log_probabilities_are_those_of_the_pass_written_out(model: PagedModel) -> None:
    weights = tensors()
    for found, prompt in zip(model.logprobs(PROMPTS, seq=CHUNK), PROMPTS, strict=True):
        expected = dense_logprobs(prompt, weights)
        assert np.abs(found - expected).max() < MAX_ERROR * expected.std()


@pytest.mark.slow
def test_greedy_tokens_are_those_of_the_pass_written_out(model: PagedModel) -> None:
    """Decoding goes on in the pages that prompts were written to, past the window."""
    weights, count = tensors(), 2 * WINDOW
    for found, prompt in zip(model.greedy(PROMPTS, count, seq=CHUNK), PROMPTS, strict=True):
        expected = list(prompt)
        for _ in range(count):
            expected.append(int(dense_logprobs(expected, weights)[-1].argmax()))
        assert found == expected[len(prompt) :]


@pytest.mark.slow
def test_other_rows_and_other_pages_give_the_same_bits(model: PagedModel) -> None:
    expected = model.logprobs(PROMPTS, seq=CHUNK)
    others = PagedModel(CONFIG, tensors(), num_pages=41)
    for again in (
        model.logprobs(PROMPTS, seq=3),
        [model.logprobs([prompt], seq=8)[0] for prompt in PROMPTS],
        others.logprobs(PROMPTS, seq=CHUNK),
    ):
        for here, there in zip(again, expected, strict=True):
            np.testing.assert_array_equal(here, there)


def move_there_and_back(model: PagedModel) -> None:
    """Pages of both pools go to the host and come back elsewhere, bit for bit; all other pages stay as they are."""
    space = dataclasses.replace(model.space, host_blocks=(40, 40))
    programs = {program.name: obtain(program)[0] for program in move_programs(space)}
    numbers = np.random.default_rng(3)
    before = [numbers.normal(size=pages.shape).astype(pages.dtype) for pages in model.runner.cache.pages]
    cache = dataclasses.replace(
        model.runner.cache,
        pages=tuple(
            jax.device_put(of_pool, pages.sharding)
            for of_pool, pages in zip(before, model.runner.cache.pages, strict=True)
        ),
    )
    store = HostStore(space)

    def move(*moves: Move) -> None:
        nonlocal cache
        pages = store.move(moves, cache.pages, lambda name, *arguments: programs[name](*arguments))
        cache = dataclasses.replace(cache, pages=tuple(pages))

    def pages_of(pool: int, values: np.ndarray) -> np.ndarray:
        return values.reshape(space.cache.pools[pool].lanes, space.num_pages[pool], -1)

    many = range(1, 21)  # more than a launch takes
    move(*(ToHost(1, page, 20 - page) for page in many), ToHost(0, 3, 7))
    move(ToHost(0, 5, 7), FromHost(0, 7, 6), *(FromHost(1, 20 - page, page + 1) for page in many))
    expected = [pages_of(pool, values.copy()) for pool, values in enumerate(before)]
    expected[0][:, 6] = expected[0][:, 5]
    expected[1][:, 2:22] = expected[1][:, 1:21]
    for pool, values in enumerate(expected):
        np.testing.assert_array_equal(pages_of(pool, np.asarray(cache.pages[pool]))[:, 1:], values[:, 1:])
        assert cache.pages[pool].sharding == model.runner.cache.pages[pool].sharding
    with pytest.raises(ValueError, match="block 8 of pool 0 is to come back and was never written"):
        move(FromHost(0, 8, 6))
    with pytest.raises(ValueError, match="block 40 is not among the 40"):
        move(ToHost(0, 8, 40))


@pytest.mark.slow
def test_pages_move_within_their_pool(model: PagedModel) -> None:
    move_there_and_back(model)


def test_without_a_host_store_nothing_moves(model: PagedModel) -> None:
    assert list(move_programs(model.space)) == []
    batch = Batch(1, Bucket(1, 1), Rows(), moves=(ToHost(0, 1, 0),))
    with pytest.raises(ValueError, match="block 0 is not among the 0"):
        model.runner.launch(batch)


@pytest.mark.slow
@pytest.mark.parametrize("devices", [2])
def test_two_devices_share_the_heads_of_both_pools(model: PagedModel, devices: int) -> None:
    shared = PagedModel(CONFIG, tensors(), devices=devices)
    move_there_and_back(shared)
    for pages in shared.runner.cache.pages:
        assert pages.sharding.shard_shape(pages.shape)[2] == pages.shape[2] // devices
    for here, there in zip(shared.logprobs(PROMPTS, seq=CHUNK), model.logprobs(PROMPTS, seq=CHUNK), strict=True):
        np.testing.assert_allclose(here, there, atol=2e-5 * there.std(), rtol=0)
