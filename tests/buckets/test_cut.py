import pytest
from hypothesis import given
from hypothesis import strategies as st

from buckets import cut_rows


@pytest.mark.parametrize(
    ("start", "length", "seq", "aligned", "rows"),
    [
        (20, 15, 8, False, [(0, 8), (8, 7)]),
        (20, 15, 8, True, [(0, 4), (4, 8), (12, 3)]),
        (16, 16, 8, True, [(0, 8), (8, 8)]),
        (20, 3, 8, True, [(0, 3)]),
        (5, 4, 1, False, [(0, 1), (1, 1), (2, 1), (3, 1)]),
        (5, 0, 8, False, []),
        (5, 0, 8, True, []),
    ],
)
def test_examples(start, length, seq, aligned, rows):
    assert cut_rows(start, length, seq, aligned=aligned) == rows


@given(st.integers(0, 100), st.integers(0, 100), st.integers(1, 20), st.booleans())
def test_rows_cover_the_stretch_in_order(start, length, seq, aligned):
    rows = cut_rows(start, length, seq, aligned=aligned)
    assert [position for offset, count in rows for position in range(offset, offset + count)] == list(range(length))
    assert all(1 <= count <= seq for _, count in rows)
    assert aligned or len(rows) == -(-length // seq)


@given(st.integers(0, 100), st.integers(1, 100), st.integers(1, 20), st.data())
def test_aligned_rows_do_not_depend_on_where_a_stretch_ends(start, length, seq, data):
    """A prompt cut in two at a multiple of seq has the rows of the whole one."""
    end = start + length
    middle = data.draw(st.sampled_from([start, *range(-(-start // seq) * seq, end, seq)]))

    def ends(first, last):
        return [first + offset + count for offset, count in cut_rows(first, last - first, seq, aligned=True)]

    assert ends(start, middle) + ends(middle, end) == ends(start, end)
