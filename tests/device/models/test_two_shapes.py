"""Layers with heads of two shapes have pages in two pools, and the answers are those of the pass written out."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import pytest

from jaxengine.device.runtime.programs import copy_program
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


def test_each_shape_has_a_pool(model: PagedModel) -> None:
    everything, windowed = model.space.cache.pools
    assert (everything.heads, everything.key, everything.windows, everything.lanes) == (2, 16, (None,), 2)
    assert (windowed.heads, windowed.key, windowed.windows, windowed.lanes) == (4, 8, (WINDOW,), 4)
    page_size = model.space.page_size
    assert [pages.shape for pages in model.runner.cache.pages] == [
        (2 * model.space.num_pages[0], page_size, 4, 16),
        (4 * model.space.num_pages[1], page_size, 8, 8),
    ]


def test_log_probabilities_are_those_of_the_pass_written_out(model: PagedModel) -> None:
    weights = tensors()
    for found, prompt in zip(model.logprobs(PROMPTS, seq=CHUNK), PROMPTS, strict=True):
        expected = dense_logprobs(prompt, weights)
        assert np.abs(found - expected).max() < MAX_ERROR * expected.std()


def test_greedy_tokens_are_those_of_the_pass_written_out(model: PagedModel) -> None:
    """Decoding goes on in the pages that prompts were written to, past the window."""
    weights, count = tensors(), 2 * WINDOW
    for found, prompt in zip(model.greedy(PROMPTS, count, seq=CHUNK), PROMPTS, strict=True):
        expected = list(prompt)
        for _ in range(count):
            expected.append(int(dense_logprobs(expected, weights)[-1].argmax()))
        assert found == expected[len(prompt) :]


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


def test_copies_stay_within_their_pool(model: PagedModel) -> None:
    """What is at a page id of one pool goes to another id there; the other pool has nothing to do with it."""
    cache = model.runner.cache
    filled = tuple(
        pages.at[:].set(np.arange(pages.size).reshape(pages.shape).astype(pages.dtype)) for pages in cache.pages
    )
    before = [np.asarray(pages) for pages in filled]
    model.runner.cache = dataclasses.replace(cache, pages=filled)
    copy, _ = obtain(copy_program(model.space))
    model.runner._copy_pages(((1, 3, 7), (0, 5, 3), (1, 9, 2)), lambda _, *arguments: copy(*arguments))
    for pool, (layout, num_pages) in enumerate(zip(model.space.cache.pools, model.space.num_pages, strict=True)):
        expected = before[pool].reshape(layout.lanes, num_pages, -1).copy()
        for source, destination in {0: [(5, 3)], 1: [(3, 7), (9, 2)]}[pool]:
            expected[:, destination] = before[pool].reshape(layout.lanes, num_pages, -1)[:, source]
        found = np.asarray(model.runner.cache.pages[pool]).reshape(expected.shape)
        np.testing.assert_array_equal(found, expected)


@pytest.mark.slow
@pytest.mark.parametrize("devices", [2])
def test_two_devices_share_the_heads_of_both_pools(model: PagedModel, devices: int) -> None:
    shared = PagedModel(CONFIG, tensors(), devices=devices)
    for pages in shared.runner.cache.pages:
        assert pages.sharding.shard_shape(pages.shape)[2] == pages.shape[2] // devices
    for here, there in zip(shared.logprobs(PROMPTS, seq=CHUNK), model.logprobs(PROMPTS, seq=CHUNK), strict=True):
        np.testing.assert_allclose(here, there, atol=2e-5 * there.std(), rtol=0)
