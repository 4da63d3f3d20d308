"""How many places are kept and how many rows are sampled, by platform."""

from __future__ import annotations

import pytest

from jaxengine.device.runtime.sampling_shapes import SamplingShapes


def shapes(platform: str, num_tokens: int, *, num_buckets: int = 2) -> SamplingShapes:
    return SamplingShapes(
        platform=platform,
        num_tokens=num_tokens,
        num_buckets=num_buckets,
        has_logits=True,
        adapters=False,
        by_row=platform == "cpu",
    )


@pytest.mark.parametrize(
    ("platform", "sequences", "drafts", "counts"),
    [
        ("cpu", 64, 0, (1, 8, 16, 32, 64)),
        ("cpu", 8, 0, (1, 8)),
        ("cpu", 5, 0, (5,)),
        ("cpu", 5, 3, (1, 8, 16, 20)),
        ("gpu", 64, 0, (8, 16, 32, 64)),
        ("tpu", 256, 0, (16, 128, 256)),
        ("tpu", 100, 0, (16, 100)),
        ("tpu", 8, 0, (16,)),
    ],
)
def test_few_row_counts_hold_whatever_is_sampled(platform, sequences, drafts, counts):
    found = shapes(platform, sequences * (1 + drafts))
    assert found.row_counts == counts
    assert found.kept == counts[-1]
    for rows in range(1, sequences * (1 + drafts) + 1):
        assert found.rows_for(rows) == min(count for count in counts if count >= rows)
    assert {shape.rows for shape in found.shapes} == set(counts)


def test_beside_a_single_bucket_there_is_one_row_count():
    """As in deterministic mode."""
    assert len(shapes("cpu", 64).row_counts) == 5
    assert shapes("cpu", 64, num_buckets=1).row_counts == (64,)
