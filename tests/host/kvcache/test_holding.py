import numpy as np
import pytest

from jaxengine.host.kvcache.holding import GroupPages, Holding
from jaxengine.host.kvcache.pool import PagePool


def holding_of(*ids):
    return Holding(b"", (GroupPages(PagePool(50), None, list(ids), len(ids)),), 0)


def grow(holding, num_pages):
    assert holding.grow(num_pages * 4, start=0, ahead=None, page_size=4)


def test_a_view_never_changes():
    """Neither where pages are added behind, nor where some go back before."""
    views = []
    for keep in (None, 6):
        holding = Holding(b"", (GroupPages(PagePool(50), keep, [], 0),), 0)
        for num_pages in range(1, 40):
            assert holding.grow(num_pages * 4, start=(num_pages - 1) * 4, ahead=4, page_size=4)
            views.append((holding.view, [list(holding.groups[0].ids)]))
    assert len({len(ids[0]) for _, ids in views}) == 39
    for view, ids in views:
        assert view.tolist() == ids


def test_without_enough_pages_nothing_is_taken():
    for keep in (None, 60):
        pool = PagePool(4)
        holding = Holding(b"", (GroupPages(pool, keep, [], 0),), 0)
        grow(holding, 2)
        assert not holding.grow(16, start=0, ahead=None, page_size=4)
        assert (pool.num_available, holding.groups[0].num_tokens, holding.view.shape) == (1, 8, (1, 2))


def test_a_view_is_int32_and_read_only():
    view = holding_of(4, 2).view
    assert view.dtype == np.int32
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1


def test_growing_within_the_table_copies_nothing():
    holding = holding_of(1, 2)
    before = holding.view
    grow(holding, 4)
    assert np.shares_memory(before, holding.view)


def test_a_group_that_covers_less_shows_the_sink_there():
    groups = (GroupPages(PagePool(50), None, [3, 4, 5], 12), GroupPages(PagePool(50), 6, [0, 7], 8, num_dropped=1))
    assert Holding(b"", groups, 0).view.tolist() == [[3, 4, 5], [0, 7, 0]]


@pytest.mark.parametrize(("position", "first"), [(0, 0), (5, 0), (8, 0), (9, 1), (12, 1), (13, 2)])
def test_the_first_page_that_a_window_of_six_still_sees(position, first):
    assert GroupPages(PagePool(50), 6, [], 0).first_seen(position, 4) == first
