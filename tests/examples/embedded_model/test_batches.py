"""Packing documents into rows."""

import itertools

import numpy as np

from examples.embedded_model.batches import rows


def test_rows_hold_whole_documents_one_after_the_other():
    lengths = itertools.cycle([3, 5, 2, 9, 4])
    lists = ([number] * length for number, length in zip(itertools.count(1), lengths, strict=False))
    seen = set()
    for tokens, segments in itertools.islice(rows(lists, 8), 40):
        assert tokens.shape == segments.shape == (8,)
        assert (segments == -1).sum() <= 1
        for segment in range(segments.max() + 1):
            ids = tokens[segments == segment]
            assert len(set(ids.tolist())) == 1
            assert ids[0] not in seen
            assert len(ids) == [4, 3, 5, 2, 9][ids[0] % 5]
            seen.add(int(ids[0]))
        assert (np.diff(segments[segments >= 0]) >= 0).all()
