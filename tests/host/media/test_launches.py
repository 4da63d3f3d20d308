"""Items become the launches that cost least, in their order."""

from __future__ import annotations

import random

import pytest

from buckets import Bucket
from jaxengine.host.media.launches import bucket_for, cut
from tests.media_items import make_item

BUCKETS = (Bucket(4, 1024), Bucket(4, 256), Bucket(1, 256))


def cuts(*patches: int, rows: int = 1) -> list[tuple[Bucket, range]]:
    return [*cut([make_item(str(number), patches=count, rows=rows) for number, count in enumerate(patches)], BUCKETS)]


def test_small_items_share_a_launch() -> None:
    assert cuts(100, 100, 100) == [(Bucket(4, 256), range(3))]


def test_two_small_launches_are_better_than_a_large_one_half_full() -> None:
    assert cuts(900, 200) == [(Bucket(4, 256), range(1)), (Bucket(1, 256), range(1, 2))]


def test_frames_are_counted() -> None:
    assert cuts(40, 40, rows=4) == [(Bucket(4, 256), range(1)), (Bucket(4, 256), range(1, 2))]


def test_an_item_that_nothing_holds_has_no_bucket() -> None:
    assert bucket_for(5, 10, BUCKETS) is None
    assert bucket_for(1, 4097, BUCKETS) is None


@pytest.mark.parametrize("seed", range(20))
def test_every_item_is_in_one_launch_that_holds_it(seed: int) -> None:
    draw = random.Random(seed)
    patches = [draw.choice([1, 60, 256, 1000, 4096]) for _ in range(draw.randint(1, 12))]
    found = cuts(*patches)
    assert [number for _, numbers in found for number in numbers] == [*range(len(patches))]
    for bucket, numbers in found:
        assert sum(patches[number] for number in numbers) <= bucket.tokens
        assert len(numbers) <= bucket.batch
