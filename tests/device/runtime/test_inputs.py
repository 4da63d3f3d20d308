"""Padding: every field of every row lands where the layout says, and rows that do not fit are refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from buckets import Bucket
from jaxengine.contract.rows import Pool, Row, Rows, Sample, Score, Want
from jaxengine.device.runtime.inputs import FlatRows, KeptPlaces, PageTables, StepLayout, pad

PAGE_SIZE = 4


Tables = dict[int, list[int]]


def row(slot: int, tokens: list[int] | None, start: int, want: Want = None) -> Row:
    return Row(slot, None if tokens is None else tuple(tokens), 1 if tokens is None else len(tokens), start, want)


def padded(
    rows: list[Row], pages: Tables, layout: StepLayout, order: list[int] | None = None, tables: PageTables | None = None
) -> dict[str, list[int]]:
    """The fields of the buffer, all kept places sampled, in `order`; of a single group those that are by group."""
    flat = FlatRows.of(Rows(rows))
    kept = KeptPlaces.of(flat)
    chosen = np.arange(len(kept)) if order is None else np.array(order)
    tables = tables or PageTables(10, pages_per_row=layout.pages_per_row, page_size=PAGE_SIZE)
    tables.write((slot, np.array([ids], np.int32)) for slot, ids in pages.items())
    buffer = pad(layout, flat, kept, chosen, tables, num_sampled=len(kept))
    assert buffer.shape == (layout.size,)
    assert buffer.dtype == np.int32
    fields = {name: layout.view(buffer, name).tolist() for name in layout.fields}
    if layout.num_groups == 1:
        fields |= {name: fields[name][0] for name in ("slot_mapping", "page_table")}
    return fields


def test_worked_example():
    layout = StepLayout(Bucket(4, 3), pages_per_row=2, kept=6)
    rows = [
        row(3, [7, 8, 9], 3),
        row(2, [4], 0, Sample()),
        row(5, None, 6, Sample()),
    ]
    assert padded(rows, {3: [5, 6], 2: [7], 5: [8, 9]}, layout, order=[1, 0]) == {
        "tokens": [7, 8, 9, 4, -5, 0, 0, 0, 0, 0, 0, 0],
        "positions": [3, 4, 5, 0, 6, 0, 0, 0, 0, 0, 0, 0],
        "slot_mapping": [23, 24, 25, 28, 38, 0, 0, 0, 0, 0, 0, 0],
        "offsets": [0, 3, 4, 5, 5],
        "starts": [3, 0, 6, 0],
        "row_slots": [3, 2, 5, 0],
        "page_table": [[5, 6], [7, 0], [8, 9], [0, 0]],
        "kept_places": [4, 3, 0, 0, 0, 0],
        "kept_slots": [5, 2, 0, 0, 0, 0],
        "kept_positions": [7, 1, 0, 0, 0, 0],
        "kept_targets": [-1] * 6,
        "kept_writes": [5, 2, 0, 0, 0, 0],
        "count": 2,
        "used": 5,
    }


def test_kept_places_of_every_want():
    layout = StepLayout(Bucket(6, 4), pages_per_row=3, kept=12)
    rows = [
        row(1, [1, 2, 3], 4, Sample(last=2)),
        row(2, [4, 5, 6], 0, Score(targets=(5, 6), sample=True)),
        row(3, [7, 8, 9], 1, Score(targets=(8, 9, 10), sample=False)),
        row(4, [10, 11], 0, Pool()),
        row(4, [12], 2),
    ]
    flat = FlatRows.of(Rows(rows))
    kept = KeptPlaces.of(flat)
    assert len(kept) == sum(row.num_kept for row in rows)
    assert kept.pooled.tolist() == [False] * 8 + [True]
    found = padded(rows, {1: [1, 2], 2: [3], 3: [4], 4: [5]}, layout)
    assert found["kept_places"][:9] == [1, 2, 3, 4, 5, 6, 7, 8, 10]
    assert found["kept_positions"][:9] == [6, 7, 1, 2, 3, 2, 3, 4, 2]
    assert found["kept_slots"][:9] == [1, 1, 2, 2, 2, 3, 3, 3, 4]
    assert found["kept_targets"][:9] == [-1, -1, 5, 6, -1, 8, 9, 10, -1]
    assert found["kept_writes"][:9] == [1, 1, 0, 0, 2, 0, 0, 0, 0]


def test_a_step_without_rows_is_all_padding():
    found = padded([], {}, StepLayout(Bucket(2, 2), pages_per_row=3, kept=4))
    assert found.pop("kept_targets") == [-1] * 4
    assert not any(np.any(values) for values in found.values())


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([row(1, [1] * 5, 0)], "1 rows with 5 tokens do not fit bucket 2x2"),
        ([row(i, None, 0) for i in range(1, 4)], "3 rows with 3 tokens do not fit bucket 2x2"),
        ([row(1, [1, 2, 3, 4], 0, Score((0,) * 4, sample=False))], "4 kept places do not fit the 3"),
        ([row(1, [1, 2], 3)], "beyond its pages"),
        ([row(3, [1], 0)], "beyond its pages"),
        (
            [row(1, None, 0), Row(2, None, 3, 0, Sample(last=3))],
            r"slot 2 says that it has 3 tokens.*the 0 drafts that the device keeps",
        ),
        ([Row(1, (1, 2), 3, 0, None), Row(2, (1, 2), 1, 0, None)], "slot 1 says that it has 3 tokens"),
    ],
)
def test_rows_that_do_not_fit(rows, message):
    with pytest.raises(ValueError, match=message):
        padded(rows, {1: [1], 2: [2]}, StepLayout(Bucket(2, 2), pages_per_row=2, kept=3))


def test_groups_have_tables_of_their_own():
    """The sink stands where a window no longer reaches."""
    layout = StepLayout(Bucket(2, 2), pages_per_row=3, kept=2, num_groups=2)
    tables = PageTables(4, pages_per_row=3, page_size=PAGE_SIZE, num_groups=2)
    tables.write([(1, np.array([[5, 6, 7], [0, 8, 9]], np.int32)), (2, np.array([[3], [4]], np.int32))])
    found = padded([row(1, [1, 2], 7, Sample()), row(2, None, 0, Sample())], {}, layout, tables=tables)
    assert found["page_table"] == [[[5, 6, 7], [3, 0, 0]], [[0, 8, 9], [4, 0, 0]]]
    assert found["slot_mapping"] == [
        [6 * PAGE_SIZE + 3, 7 * PAGE_SIZE, 3 * PAGE_SIZE, 0],
        [8 * PAGE_SIZE + 3, 9 * PAGE_SIZE, 4 * PAGE_SIZE, 0],
    ]


def test_page_tables_follow_the_pages():
    """A slot has the pages that it was given last, as many as a row may have."""
    tables = PageTables(4, pages_per_row=2, page_size=PAGE_SIZE)

    def take(pages: Tables, *rows: Row) -> list[list[int]]:
        tables.write((slot, np.array([ids], np.int32)) for slot, ids in pages.items())
        out = np.zeros((1, len(rows), 2), np.int32)
        tables.take(FlatRows.of(Rows(rows)), out)
        return out[0].tolist()

    assert take({1: [3]}, row(1, [1], 0)) == [[3, 0]]
    assert take({1: [3, 4, 9]}, row(1, [1], 5)) == [[3, 4]]
    assert take({2: [6]}, row(1, [1], 6), row(2, [1], 0), row(1, [1], 7)) == [[3, 4], [6, 0], [3, 4]]
    with pytest.raises(ValueError, match="beyond its pages"):
        take({1: [5]}, row(1, [1], 4))


@given(st.data())
def test_any_rows_can_be_read_back(data):
    bucket = Bucket(data.draw(st.integers(1, 6)), data.draw(st.integers(1, 6)))
    layout = StepLayout(bucket, 4, 40)
    rows: list[Row] = []
    tables: Tables = {}
    left = bucket.tokens
    for slot in range(1, 1 + data.draw(st.integers(0, bucket.batch))):
        if not left:
            break
        count = data.draw(st.integers(1, min(left, 10)))
        left -= count
        start = data.draw(st.integers(0, 16 - count))
        tables[slot] = data.draw(st.lists(st.integers(1, 99), min_size=-(-(start + count) // PAGE_SIZE), max_size=4))
        tokens = (
            None
            if count == 1 and data.draw(st.booleans())
            else data.draw(st.lists(st.integers(0, 500), min_size=count, max_size=count))
        )
        want = data.draw(st.sampled_from([None, Sample(), Sample(last=count), Pool()]))
        rows.append(row(slot, tokens, start, want))
    found = padded(rows, tables, layout)
    places = iter(zip(found["kept_places"], found["kept_positions"], found["kept_slots"], strict=True))
    for number, given_row in enumerate(rows):
        first, last = found["offsets"][number : number + 2]
        assert last - first == given_row.num_tokens
        assert found["tokens"][first:last] == list(given_row.tokens or (-given_row.slot,))
        positions = found["positions"][first:last]
        assert positions == list(range(given_row.start, given_row.start + given_row.num_tokens))
        pages = found["page_table"][number]
        assert found["slot_mapping"][first:last] == [
            pages[p // PAGE_SIZE] * PAGE_SIZE + p % PAGE_SIZE for p in positions
        ]
        for at in range(given_row.num_tokens - given_row.num_kept, given_row.num_tokens):
            assert next(places) == (first + at, positions[at] + 1, given_row.slot)
    assert found["offsets"][len(rows) :] == [bucket.tokens - left] * (bucket.batch + 1 - len(rows))
    assert not any(found["slot_mapping"][bucket.tokens - left :])
