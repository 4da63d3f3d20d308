import numpy as np
import pytest

from jaxengine.host.kvcache.holding import GroupPages, Holding
from jaxengine.host.kvcache.pool import PagePool


def holding_of(*ids):
    return Holding(b"", (GroupPages(PagePool(50), None, list(ids), len(ids)),), 0)


def test_a_view_never_changes():
    holding = holding_of(4)
    [group] = holding.groups
    views = []
    for page in range(5, 40):
        views.append((holding.view, list(group.ids)))
        if page % 7 == 0:
            group.ids[-1] = page
            holding.rebuild()
        else:
            holding.append([page])
    for view, ids in views:
        assert view.tolist() == [ids]


def test_a_view_is_int32_and_read_only():
    view = holding_of(4, 2).view
    assert view.dtype == np.int32
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1


def test_growing_within_the_table_copies_nothing():
    holding = holding_of(1, 2)
    before = holding.view
    holding.append([3, 4])
    assert np.shares_memory(before, holding.view)


def test_a_group_that_covers_less_shows_the_sink_there():
    groups = (GroupPages(PagePool(50), None, [3, 4, 5], 12), GroupPages(PagePool(50), 6, [0, 7], 8, num_dropped=1))
    assert Holding(b"", groups, 0).view.tolist() == [[3, 4, 5], [0, 7, 0]]


@pytest.mark.parametrize(("position", "first"), [(0, 0), (5, 0), (8, 0), (9, 1), (12, 1), (13, 2)])
def test_the_first_page_that_a_window_of_six_still_sees(position, first):
    assert GroupPages(PagePool(50), 6, [], 0).first_seen(position, 4) == first
