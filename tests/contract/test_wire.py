"""Values pass whole and in order, large arrays beside their messages."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from jaxengine.contract.wire import BESIDE, Wire


@pytest.fixture
def ends() -> Iterator[tuple[Wire, Wire]]:
    here, there = map(Wire, multiprocessing.Pipe())
    yield here, there
    here.close()
    there.close()


def passed(ends: tuple[Wire, Wire], *values: object) -> list[object]:
    here, there = ends
    sending = threading.Thread(target=lambda: [here.send(value) for value in values])
    sending.start()
    received = [there.receive() for _ in values]
    sending.join()
    return received


def test_messages_pass_in_order(ends: tuple[Wire, Wire]) -> None:
    assert passed(ends, "a", {"b": 1}, None, b"S" * 5) == ["a", {"b": 1}, None, b"S" * 5]


@pytest.mark.parametrize("size", [0, 1, BESIDE // 4 - 1, BESIDE // 4, 3 * BESIDE])
def test_arrays_of_any_size_arrive_as_they_were(ends: tuple[Wire, Wire], size: int) -> None:
    array = np.arange(size, dtype=np.float32)
    [(name, first, second), after] = passed(ends, ("name", array, array[::2].copy()), "after")
    assert (name, after) == ("name", "after")
    np.testing.assert_array_equal(first, array)
    np.testing.assert_array_equal(second, array[::2])
    assert first.dtype == np.float32


def test_arrays_in_another_order_than_c_arrive(ends: tuple[Wire, Wire]) -> None:
    array = np.arange(BESIDE, dtype=np.float32).reshape(256, -1)
    [turned, cut] = passed(ends, array.T, array[:, ::3])
    np.testing.assert_array_equal(turned, array.T)
    np.testing.assert_array_equal(cut, array[:, ::3])


def test_threads_that_send_at_once_do_not_mix(ends: tuple[Wire, Wire]) -> None:
    here, there = ends
    senders = [
        threading.Thread(target=lambda n=number: [here.send(np.full(BESIDE, n)) for _ in range(5)])
        for number in range(4)
    ]
    for sender in senders:
        sender.start()
    counts = [0] * 4
    for _ in range(20):
        array = there.receive()
        assert (array == array[0]).all()
        counts[int(array[0])] += 1
    assert counts == [5] * 4


def test_an_end_that_is_gone_within_an_array_is_an_end(ends: tuple[Wire, Wire]) -> None:
    here, there = ends
    here._connection.send_bytes(b"S100000")
    here._connection.send_bytes(b"anything")
    here.close()
    with pytest.raises(EOFError):
        there.receive()
