"""Rows of tokens that the device has are put where their sequences end, with the drafts in their places."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from buckets import Bucket
from jaxengine.contract.rows import ONE, Row, Rows, Sample
from jaxengine.device.runtime.drafting import Known, place
from jaxengine.device.runtime.inputs import FlatRows, KeptPlaces, PageTables, StepLayout, pad

LAYOUT = StepLayout(Bucket(4, 12), pages_per_row=8, kept=12, num_groups=2, drafts=True)
NUM_SLOTS, PAGE = 5, 4
KNOWN = Known(
    length=np.array([0, 6, 9, 0, 12], np.int32),
    last_token=np.array([0, 41, 42, 0, 44], np.int32),
    drafts=np.array([[0, 0, 0], [51, 61, 71], [52, 62, 72], [0, 0, 0], [54, 64, 74]], np.int32),
)


def padded(rows: list[Row]) -> np.ndarray:
    flat = FlatRows.of(Rows(rows), num_slots=NUM_SLOTS, num_drafts=3)
    kept = KeptPlaces.of(flat)
    tables = PageTables(NUM_SLOTS, pages_per_row=8, page_size=PAGE, num_groups=2)
    tables.write((slot, np.array([[1, 2, 3, 4, 5], [6, 7, 8, 9, 10]], np.int32) + 10 * slot) for slot in range(1, 5))
    return pad(LAYOUT, flat, kept, np.arange(len(kept)), tables, num_sampled=len(kept))


def same(planned: list[Row], known: list[Row]) -> None:
    """What the device makes of rows as planned is what the host would have made, had it known."""
    found = np.asarray(place(LAYOUT, KNOWN, jnp.asarray(padded(planned)), page_size=PAGE))
    expected = padded(known)
    for name in LAYOUT.fields:
        assert LAYOUT.view(found, name).tolist() == LAYOUT.view(expected, name).tolist(), name


def test_rows_go_back_to_where_their_sequences_end() -> None:
    same(
        [Row(1, None, 4, 9, Sample(4)), Row(2, None, 2, 9, Sample(2)), Row(4, None, 1, 14, ONE)],
        [Row(1, (41, 51, 61, 71), 4, 6, Sample(4)), Row(2, (42, 52), 2, 9, Sample(2)), Row(4, (44,), 1, 12, ONE)],
    )


def test_rows_that_bring_their_tokens_stay() -> None:
    prompt = Row(3, (7, 8, 9, 10, 11), 5, 2, ONE)
    same([prompt, Row(2, None, 3, 12, Sample(3))], [prompt, Row(2, (42, 52, 62), 3, 9, Sample(3))])
    same([prompt._replace(want=None)], [prompt._replace(want=None)])


def test_tokens_of_the_device_are_told_apart_by_slot_and_draft() -> None:
    flat = FlatRows.of(Rows([Row(1, None, 2, 0, ONE), Row(2, None, 3, 0, ONE)]), num_slots=NUM_SLOTS, num_drafts=3)
    assert flat.tokens.tolist() == [-1, -6, -2, -7, -12]
    mixed = FlatRows.of(Rows([Row(1, None, 2, 0, ONE), Row(2, (9,), 1, 0, ONE)]), num_slots=NUM_SLOTS, num_drafts=3)
    assert mixed.tokens.tolist() == [-1, -6, 9]
