import errno
import logging
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from jaxengine.device.tiers import rest
from jaxengine.device.tiers.disk import disk_store
from jaxengine.device.tiers.disk.directory import BlockDirectory
from jaxengine.device.tiers.disk.disk_store import DiskStore
from tests.device.tiers.blocks import block_of, equal, key_of
from tests.device.tiers.disk.stores import open_store, wait_for

MIB = 1 << 20


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setattr(rest, "FIRST_REST_S", 0.05)
    with closing(open_store(tmp_path)) as store:
        yield store


def path_of(store, number):
    return store._directory.path(key_of(number))


def test_another_engine_finds_what_was_stored(tmp_path):
    with closing(open_store(tmp_path)) as first:
        assert first.store(key_of(1), block_of(1))
        assert not first.store(key_of(1), block_of(1)), "it is there already"
    with closing(open_store(tmp_path)) as second:
        assert second.has([key_of(1), key_of(2)]) == [True, False]
        assert equal(second.fetch(key_of(1)), block_of(1))
        assert second.fetch(key_of(2)) is None
        second.drop(key_of(1))
        second.drop(key_of(1))
        assert second.has([key_of(1)]) == [False]


def test_a_damaged_file_is_removed_with_a_warning(store, caplog):
    damages = {
        1: lambda data: data[:-1],
        2: lambda data: data[:-40] + bytes([data[-40] ^ 1]) + data[-39:],
        3: lambda data: b"",
        4: lambda data: b"a foreign file" * 100,
    }
    for number, damage in damages.items():
        store.store(key_of(number), block_of(number))
        with open(path_of(store, number), "rb") as file:
            data = file.read()
        with open(path_of(store, number), "wb") as file:
            file.write(damage(data))
    with caplog.at_level(logging.WARNING, logger="jaxengine"):
        assert [store.fetch(key_of(number)) for number in damages] == [None] * 4
    assert len([message for message in caplog.messages if "damaged" in message]) == 1
    assert store.has([key_of(number) for number in damages]) == [False] * 4
    assert store.store(key_of(1), block_of(1)), "the right one can be kept again"
    assert equal(store.fetch(key_of(1)), block_of(1))


def test_a_file_of_another_key_is_not_taken(store):
    store.store(key_of(1), block_of(1))
    os.makedirs(os.path.dirname(path_of(store, 2)))
    os.rename(path_of(store, 1), path_of(store, 2))
    assert store.fetch(key_of(2)) is None


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO], ids=errno.errorcode.get)
def test_a_disk_that_takes_nothing_costs_a_warning(store, monkeypatch, caplog, number):
    assert store.store(key_of(0), block_of(0))

    def fails(descriptor, views):
        os.write(descriptor, bytes(views[0])[:5])
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "writev", fails)
    with caplog.at_level(logging.WARNING, logger="jaxengine"):
        assert [store.store(key_of(i), block_of(i)) for i in range(1, 50)] == [False] * 49
    assert len(caplog.messages) == 1
    assert ("full" in caplog.text) == (number in (errno.ENOSPC, errno.EDQUOT))
    assert os.listdir(store._directory.aside) == [], "nothing half written stays"
    assert not any(store.has([key_of(i) for i in range(1, 50)]))


def test_a_disk_that_cannot_be_read_costs_a_warning(store, monkeypatch, caplog):
    store.store(key_of(1), block_of(1))

    def fails(*args):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as broken, caplog.at_level(logging.WARNING, logger="jaxengine"):
        broken.setattr(os, "preadv", fails)
        assert [store.fetch(key_of(1)) for _ in range(9)] == [None] * 9
        assert store.has([key_of(1)]) == [False], "a disk that fails is left alone"
    assert len(caplog.messages) == 1
    wait_for(lambda: store.has([key_of(1)]) == [True])
    assert equal(store.fetch(key_of(1)), block_of(1))


def test_a_directory_that_may_only_be_read_still_has_its_blocks(tmp_path, monkeypatch):
    with closing(open_store(tmp_path)) as writer:
        writer.store(key_of(1), block_of(1))

    def read_only(*args, **kwargs):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    for name in ("utime", "replace", "unlink", "link"):
        monkeypatch.setattr(os, name, read_only)
    with closing(open_store(tmp_path)) as store:
        assert equal(store.fetch(key_of(1)), block_of(1))
        assert not store.store(key_of(2), block_of(2))


def test_a_consumer_writes_nothing_and_a_producer_reads_nothing(tmp_path):
    directory = BlockDirectory.open(tmp_path)
    with (
        closing(DiskStore(directory, MIB, reads=False)) as producer,
        closing(DiskStore(directory, MIB, writes=False)) as consumer,
    ):
        assert not consumer.store(key_of(1), block_of(1))
        assert producer.store(key_of(1), block_of(1))
        assert producer.has([key_of(1)]) == [False]
        assert producer.fetch(key_of(1)) is None
        assert consumer.has([key_of(1)]) == [True]
        assert equal(consumer.fetch(key_of(1)), block_of(1))


@pytest.mark.slow
def test_the_bytes_of_two_engines_stay_within_bounds(tmp_path):
    """They write four times what there may be from two threads each and read the first block again and again."""
    limit, block = MIB, block_of(0, shape=(8, 32, 16))
    with closing(open_store(tmp_path, limit)) as first, closing(open_store(tmp_path, limit)) as second:
        most, done = [0], threading.Event()
        first.store(key_of(0), block)

        def write(store, numbers):
            for number in numbers:
                begin = time.monotonic()
                while not store.store(key_of(number), block):
                    assert time.monotonic() < begin + 60, "no room is made"
                    time.sleep(0.001)
                store.fetch(key_of(0))

        def watch():
            while not done.wait(0.005):
                most[0] = max(most[0], sum(sizes(tmp_path)))

        watcher = threading.Thread(target=watch)
        watcher.start()
        count = limit // block.nbytes
        with ThreadPoolExecutor(4) as threads:
            jobs = [
                threads.submit(write, store, range(1 + part * count, 1 + (part + 1) * count))
                for part, store in enumerate((first, first, second, second))
            ]
            for job in jobs:
                job.result()
        done.set()
        watcher.join()
        assert first.has([key_of(0)]) == [True], "what is of use stays"
        assert limit // 2 < most[0] <= limit


def sizes(folder):
    for file in BlockDirectory.open(folder).files():
        with suppress(FileNotFoundError):
            yield os.path.getsize(file.path)


def test_a_full_disk_makes_room_of_its_own_blocks(store, monkeypatch):
    """Where other files take the disk, or it is smaller than what was allowed."""
    for number in range(32):
        store.store(key_of(number), block_of(number))
        os.utime(path_of(store, number), (number, number))
    writev = os.writev

    def full(descriptor, views):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "writev", full)
    assert not store.store(key_of(99), block_of(99))
    wait_for(lambda: store.has([key_of(0)]) == [False])
    assert store.has([key_of(31)]) == [True]
    monkeypatch.setattr(os, "writev", writev)
    wait_for(lambda: store.store(key_of(99), block_of(99)))


def test_what_a_killed_writer_left_goes_at_the_start(tmp_path):
    descriptor, aside = BlockDirectory.open(tmp_path).open_aside()
    os.close(descriptor)
    os.utime(aside, (0, 0))
    with closing(open_store(tmp_path)):
        wait_for(lambda: not os.path.exists(aside))


def test_a_look_that_fails_does_not_end_the_next(tmp_path, monkeypatch, caplog):
    looks = []

    def fails(*args):
        looks.append(args)
        raise OSError(errno.EIO, "gone")

    monkeypatch.setattr(disk_store, "measure", fails)
    with closing(open_store(tmp_path)) as store:
        wait_for(lambda: len(looks) == 1)
        store._look.set()
        wait_for(lambda: len(looks) == 2)
    assert "cannot be looked through" in caplog.text


def test_a_block_that_never_fits_is_not_kept(tmp_path):
    with closing(open_store(tmp_path, 20_000)) as store:
        assert not store.store(key_of(1), block_of(1, shape=(20, 20)))
        assert store.store(key_of(2), block_of(2))


class OneKeyOneContent(RuleBasedStateMachine):
    """Whatever is done to the files, by two stores and by others, a key gives its own block or none."""

    numbers = st.integers(0, 4)

    def __init__(self):
        super().__init__()
        OneKeyOneContent.count = getattr(OneKeyOneContent, "count", 0) + 1
        folder = OneKeyOneContent.folder / str(OneKeyOneContent.count)
        self.stores = [open_store(folder), open_store(folder)]

    @rule(number=numbers, which=st.integers(0, 1))
    def store(self, number, which):
        there = self.stores[1 - which].has([key_of(number)])[0]
        assert self.stores[which].store(key_of(number), block_of(number)) != there

    @rule(number=numbers, which=st.integers(0, 1))
    def fetch(self, number, which):
        block = self.stores[which].fetch(key_of(number))
        assert block is None or equal(block, block_of(number))

    @rule(number=numbers)
    def drop(self, number):
        self.stores[0].drop(key_of(number))

    @rule(number=numbers, place=st.integers(0, 10**6), bit=st.integers(0, 7))
    def flip(self, number, place, bit):
        path = path_of(self.stores[0], number)
        if os.path.exists(path) and os.path.getsize(path):
            data = np.fromfile(path, np.uint8)
            data[place % len(data)] ^= 1 << bit
            data.tofile(path)

    @rule(number=numbers, length=st.integers(0, 10**6))
    def cut(self, number, length):
        path = path_of(self.stores[0], number)
        if os.path.exists(path):
            os.truncate(path, length % (os.path.getsize(path) + 64))

    @rule(number=numbers, other=numbers)
    def mistake(self, number, other):
        source, target = path_of(self.stores[0], number), path_of(self.stores[0], other)
        if os.path.exists(source):
            os.makedirs(os.path.dirname(target), exist_ok=True)
            os.rename(source, target)

    def teardown(self):
        for store in self.stores:
            store.close()


def test_a_key_gives_its_own_block_or_none(tmp_path, monkeypatch):
    monkeypatch.setattr(OneKeyOneContent, "folder", tmp_path, raising=False)
    machine = OneKeyOneContent.TestCase
    machine.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
    machine("runTest").runTest()
