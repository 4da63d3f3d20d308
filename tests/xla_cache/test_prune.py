"""Pruning forgets what was not used for longest, and nothing that another process may be writing."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.xla_cache.small import cache, scaled
from xla_cache import Store, obtain
from xla_cache.prune import GRACE_S, prune
from xla_cache.report import verify

DAY = 86400.0


@pytest.fixture
def store(tmp_path):
    """Three programs, last used three, two and one days ago."""
    kept = cache(tmp_path / "xla")
    for days, factor in ((3, 2), (2, 3), (1, 4)):
        program = scaled(factor)
        obtain(program, kept)
        age(kept.store.path / "records" / f"{kept.key(program).digest}.json", days)
    for file in (kept.store.path / "objects").iterdir():
        age(file, 3)
    return kept.store


def age(path: Path, days: float) -> None:
    os.utime(path, (time.time() - days * DAY,) * 2)


def programs(store: Store) -> set[str]:
    assert verify(store) == []
    return {record.program for record in store.records()}


def test_by_age(store):
    done = prune(store, older_than_s=1.5 * DAY)
    assert (done.removed, done.left) == (2, 1)
    assert programs(store) == {"scale 4"}
    assert len(list((store.path / "objects").iterdir())) == 1
    assert done.freed_bytes > done.left_bytes > 0


def test_by_size_the_least_recently_used_first(store):
    packed = {record.program: record.packed for record in store.records()}
    prune(store, max_bytes=packed["scale 4"] + packed["scale 3"])
    assert programs(store) == {"scale 3", "scale 4"}
    prune(store, max_bytes=0)
    assert programs(store) == set()


def test_use_makes_a_program_young(store):
    obtain(scaled(2), cache(store.path))
    prune(store, older_than_s=0.5 * DAY)
    assert programs(store) == {"scale 2"}


def test_damaged_records_go_and_fresh_files_of_others_stay(store):
    damaged = next((store.path / "records").iterdir())
    damaged.write_bytes(b"{}")
    fresh, old = store.path / "objects" / ".tmp-fresh", store.path / "objects" / ".tmp-old"
    for file in (fresh, old):
        file.write_bytes(b"half")
    os.utime(old, (time.time() - 2 * GRACE_S,) * 2)
    prune(store, older_than_s=100 * DAY)
    assert not damaged.exists()
    assert fresh.exists()
    assert not old.exists()
    assert len(programs(store)) == 2


def test_an_object_that_is_about_to_be_named_stays(store):
    orphan = store.path / "objects" / ("0" * 64 + ".zst")
    orphan.write_bytes(b"written a moment ago")
    prune(store, older_than_s=100 * DAY)
    assert orphan.exists()
    age(orphan, 1)
    prune(store, older_than_s=100 * DAY)
    assert not orphan.exists()
