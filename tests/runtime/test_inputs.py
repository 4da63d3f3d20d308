"""Padding: every field of every row lands where the layout says, and rows that do not fit are refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from buckets import Bucket, StepShape
from jaxengine.batch import Row, RowSampling, SamplingSpec
from jaxengine.runtime.inputs import StepLayout, pad

SAMPLED = RowSampling(SamplingSpec(temperature=0.0, seed=0))


def row(tokens: list[int], start: int, pages: list[int], *, sampled: bool) -> Row:
    return Row(tuple(tokens), start, np.asarray(pages, np.int32), SAMPLED if sampled else None)


def test_worked_example():
    layout = StepLayout(StepShape(Bucket(2, 3), Bucket(2, 1)), pages_per_row=2, sampled_rows=4)
    prefill = [row([7, 8, 9], 0, [1], sampled=False), row([5, 6], 3, [1, 2], sampled=True)]
    decode = [row([4], 6, [3, 4], sampled=True)]
    assert pad(layout, prefill, decode).tolist() == [
        *(7, 8, 9, 5, 6, 0),  # prefill tokens
        *(0, 3),  # starts
        *(3, 2),  # lengths
        *(1, 0, 1, 2),  # page table
        *(4, 0),  # decode tokens
        *(6, 0),
        *(1, 0),
        *(3, 4, 0, 0),
        *(4, 6, 0, 0),  # place of token 6, place of token 4, padding
    ]


def test_layout_without_rows_is_all_padding():
    layout = StepLayout(StepShape(None, Bucket(4, 1)), pages_per_row=3, sampled_rows=8)
    assert layout.size == 4 + 4 + 4 + 12 + 8
    assert not pad(layout, (), ()).any()


@pytest.mark.parametrize(
    ("prefill", "decode", "message"),
    [
        ([row([1, 2, 3], 0, [1], sampled=True)], [], "3 to 3 tokens do not fit bucket 2x2"),
        ([row([1], 0, [1], sampled=True)] * 3, [], "3 rows do not fit bucket 2x2"),
        ([], [row([1], 0, [1], sampled=True)], "rows for a bucket"),
    ],
)
def test_rows_that_do_not_fit(prefill, decode, message):
    layout = StepLayout(StepShape(Bucket(2, 2), None), pages_per_row=1, sampled_rows=8)
    with pytest.raises(ValueError, match=message):
        pad(layout, prefill, decode)


def test_too_many_sampled_rows():
    layout = StepLayout(StepShape(None, Bucket(4, 1)), pages_per_row=1, sampled_rows=2)
    with pytest.raises(ValueError, match="3 sampled rows"):
        pad(layout, (), [row([1], 0, [1], sampled=True)] * 3)


@given(st.data())
def test_sampled_places_point_at_each_rows_last_token(data):
    batch, seq, decode_rows = data.draw(st.tuples(st.integers(1, 5), st.integers(2, 6), st.integers(0, 5)))
    layout = StepLayout(StepShape(Bucket(batch, seq), Bucket(max(1, decode_rows), 1)), 2, 16)
    lengths = data.draw(st.lists(st.integers(1, seq), max_size=batch))
    prefill = [row([100 * i + j for j in range(n)], 0, [1], sampled=i % 2 == 0) for i, n in enumerate(lengths)]
    decode = [row([9000 + i], 4, [1], sampled=True) for i in range(decode_rows)]
    buffer = pad(layout, prefill, decode)
    first, second = layout.blocks
    tokens = np.concatenate(
        [buffer[first.offset : first.offset + batch * seq], buffer[second.offset : second.offset + second.bucket.batch]]
    )
    expected = [r.tokens[-1] for r in (*prefill, *decode) if r.sampling is not None]
    places = buffer[layout.sampled_offset : layout.sampled_offset + len(expected)]
    assert tokens[places].tolist() == expected
