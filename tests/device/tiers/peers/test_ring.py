"""Bytes in a ring: what is read is whole or nothing, also by another process's mapping."""

from __future__ import annotations

import mmap
import os
import threading

import numpy as np
import pytest

from jaxengine.device.tiers.peers.ring import HAS_SHARED_MEMORY, Ring, RingView
from jaxengine.device.tiers.peers.session import ProtocolError
from jaxengine.device.tiers.peers.shelf import Shelf

shared = pytest.mark.skipif(not HAS_SHARED_MEMORY, reason="no memfd_create here")


def _fill(number: int, length: int) -> bytes:
    return bytes([number % 251]) * length


def test_the_oldest_give_way_and_what_is_read_is_what_was_written() -> None:
    ring, rng = Ring(10_000, shared=False), np.random.default_rng(1)
    written = []
    for number in range(500):
        length = int(rng.integers(1, 3000))
        position = ring.append([_fill(number, length // 2), _fill(number + 1, length - length // 2)], length)
        assert position is not None
        written.append((position, length, number))
        for at, size, value in written[-20:]:
            copy = ring.read(at, size)
            assert (copy is None) == (at < ring.oldest)
            if copy is not None:
                assert bytes(copy) == _fill(value, size // 2) + _fill(value + 1, size - size // 2)
        assert ring.read(position, length) is not None
    assert ring.append([bytes(10_001)], 10_001) is None


@shared
def test_another_mapping_reads_the_same_and_can_neither_write_nor_shrink() -> None:
    ring = Ring(100_000, shared=True)
    assert ring.descriptor is not None
    view = RingView(ring.descriptor)
    position = ring.append([b"abc", b"def"], 6)
    assert position is not None
    copy = view.read(position, 6)
    assert copy is not None
    assert bytes(copy) == b"abcdef"
    with pytest.raises(ProtocolError, match="not in the ring"):
        view.read(99_999, 2)
    with pytest.raises(OSError):
        os.ftruncate(ring.descriptor, 10)
    with pytest.raises(OSError):
        mmap.mmap(ring.descriptor, 4096, prot=mmap.PROT_WRITE)
    for number in range(10):
        ring.append([_fill(number, 30_000)], 30_000)
    assert view.read(position, 6) is None


@shared
def test_memory_that_may_shrink_is_refused() -> None:
    descriptor = os.memfd_create("no ring", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, 10_000)
    with pytest.raises(ProtocolError, match="may shrink"):
        RingView(descriptor)
    os.close(descriptor)


def test_readers_beside_a_writer_never_see_half_of_two_blocks() -> None:
    shelf, enough = Shelf(Ring(64 * 1024, shared=False)), threading.Event()
    keys = [bytes([number]) * 32 for number in range(40)]

    def write() -> None:
        while not enough.is_set():
            for number, key in enumerate(keys):
                shelf.drop(key)
                shelf.put(key, [_fill(number, 4096)], 4096)
                if number % 7 == 0:
                    shelf.place(key)

    writer = threading.Thread(target=write)
    writer.start()
    whole = 0
    try:
        while whole < 1000:
            for number, key in enumerate(keys):
                data = shelf.take(key)
                if data is not None:
                    whole += 1
                    assert bytes(data) == _fill(number, 4096)
    finally:
        enough.set()
        writer.join()


def test_a_block_that_is_asked_for_again_and_again_stays() -> None:
    shelf = Shelf(Ring(64 * 1024, shared=False))
    shelf.put(b"often", [b"x" * 1024], 1024)
    shelf.put(b"never", [b"y" * 1024], 1024)
    for number in range(500):
        shelf.put(b"%d" % number, [bytes(1024)], 1024)
        data = shelf.take(b"often")
        assert data is not None
        assert bytes(data) == b"x" * 1024
    assert shelf.has([b"often", b"never", b"499", b"3"]) == [True, False, True, False]
    assert len(shelf) <= 64
    assert not shelf.put(b"often", [b"z"], 1), "it lies there already"
    shelf.drop(b"often")
    assert shelf.take(b"often") is None


def test_what_is_expected_is_waited_for_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxengine.device.tiers.peers.shelf.EXPECTED_S", 600.0)
    shelf = Shelf(Ring(64 * 1024, shared=False))
    assert shelf.wait([b"never heard of"], 3600.0) == [False]
    shelf.expect([b"a", b"b"])
    threading.Timer(0.05, lambda: [shelf.put(key, [key], 1) for key in (b"b", b"a")]).start()
    assert shelf.wait([b"a", b"b", b"c"], 60.0) == [True, True, False]
    shelf.expect([b"late"])
    assert shelf.wait([b"late"], 0.01) == [False]
