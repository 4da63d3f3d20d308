import numpy as np
import pytest

from jaxengine.kvcache.holding import Holding


def test_a_view_never_changes():
    holding = Holding(b"", [4], 1, [])
    views = []
    for page in range(5, 40):
        views.append((holding.view, list(holding.ids)))
        if page % 7 == 0:
            holding.replace_tail(page)
        else:
            holding.append([page])
    for view, ids in views:
        assert view.tolist() == ids


def test_a_view_is_int32_and_read_only():
    view = Holding(b"", [4, 2], 2, []).view
    assert view.dtype == np.int32
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1


def test_growing_within_the_table_copies_nothing():
    holding = Holding(b"", [1, 2], 2, [])
    before = holding.view
    holding.append([3, 4])
    assert np.shares_memory(before, holding.view)
