"""Rows that are cut where chunks begin: every token keeps its place, sees its own chunk up to itself, and nothing else."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from jaxengine.device.layers.chunks import by_chunk
from jaxengine.device.layers.step import Step
from jaxengine.errors import ConfigError

PAGE_SIZE, WIDTH, PLACES, ROWS = 4, 12, 48, 6
BY_CHUNK = jax.jit(by_chunk, static_argnums=1)


def step_of(starts: np.ndarray, counts: np.ndarray, table: np.ndarray) -> Step:
    return Step(
        positions=np.zeros(PLACES, np.int32),
        page_table=table.astype(np.int32),
        offsets=np.cumsum([0, *counts], dtype=np.int32),
        starts=starts.astype(np.int32),
        slot_mapping=np.zeros(PLACES, np.int32),
        indices=(),
        num_pages=(),
        page_size=PAGE_SIZE,
        attention_backend="auto",
    )


def seen(step: Step) -> list[list[tuple[int, int]]]:
    """Of each place that holds a token, the pages and offsets within them that it attends to."""
    offsets, starts, table = (np.asarray(x) for x in (step.offsets, step.starts, step.page_table))
    assert len(table) == len(starts) == len(offsets) - 1
    assert (np.diff(offsets) >= 0).all()
    found = []
    for place in range(offsets[-1]):
        row = int(np.sum(offsets[1:] <= place))
        last = starts[row] + place - offsets[row]
        found.append([(int(table[row, at // PAGE_SIZE]), at % PAGE_SIZE) for at in range(last + 1)])
    return found


@pytest.mark.parametrize("chunk", [4, 8, 16, 40])
def test_a_token_sees_its_chunk(chunk: int) -> None:
    generator = np.random.default_rng(chunk)
    for _ in range(40):
        counts = generator.multinomial(generator.integers(1, PLACES - 11), [1 / ROWS] * ROWS)
        counts[generator.integers(ROWS)] += generator.integers(12)
        starts = np.array([generator.integers(0, PAGE_SIZE * WIDTH - count + 1) for count in counts])
        step = step_of(starts, counts, generator.permutation(ROWS * WIDTH).reshape(ROWS, WIDTH))
        positions = [start + number for start, count in zip(starts, counts, strict=True) for number in range(count)]
        expected = [of_all[at // chunk * chunk :] for at, of_all in zip(positions, seen(step), strict=True)]
        assert seen(BY_CHUNK(step, chunk)) == expected


def test_as_many_tokens_as_there_are_places_may_each_begin_a_chunk() -> None:
    """The most pieces: rows of two tokens around a border."""
    counts = np.array([PLACES - 2 * (ROWS - 1), *[2] * (ROWS - 1)])
    step = step_of(np.array([3, *[7] * (ROWS - 1)]), counts, np.arange(ROWS * WIDTH).reshape(ROWS, WIDTH))
    pieces = BY_CHUNK(step, 4)
    assert pieces.offsets[-1] == PLACES
    assert len(seen(pieces)) == PLACES


def test_one_chunk_is_no_chunk() -> None:
    step = step_of(np.zeros(ROWS), np.ones(ROWS, int), np.zeros((ROWS, WIDTH)))
    assert by_chunk(step, PAGE_SIZE * WIDTH) is step


def test_pages_of_two_chunks_are_refused() -> None:
    step = step_of(np.zeros(ROWS), np.ones(ROWS, int), np.zeros((ROWS, WIDTH)))
    with pytest.raises(ConfigError, match="chunks of 10 positions needs a page_size that divides them, got 4"):
        by_chunk(step, 10)
