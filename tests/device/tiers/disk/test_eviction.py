import os
from concurrent.futures import ThreadPoolExecutor

from jaxengine.device.tiers.disk.directory import BlockDirectory
from jaxengine.device.tiers.disk.eviction import evict, measure
from tests.device.tiers.blocks import key_of
from tests.device.tiers.disk.test_directory import write

SIZE = 1000


def filled(tmp_path, count):
    """Blocks of `SIZE` bytes, the first of use at second 0, the next at 1 and so on."""
    directory = BlockDirectory.open(tmp_path)
    for number in range(count):
        write(directory, number, bytes(SIZE))
        os.utime(directory.path(key_of(number)), (number, number))
    return directory


def left(directory, count):
    return [number for number in range(count) if os.path.exists(directory.path(key_of(number)))]


def never():
    return False


def test_what_was_of_use_longest_ago_goes(tmp_path):
    directory = filled(tmp_path, 10)
    times, sizes = measure(directory, never)
    assert sum(sizes) == 10 * SIZE
    assert evict(directory, times, sizes, 2 * SIZE + 1, never) == 3 * SIZE
    assert left(directory, 10) == list(range(3, 10))


def test_what_is_of_use_meanwhile_stays(tmp_path):
    directory = filled(tmp_path, 10)
    found = measure(directory, never)
    os.utime(directory.path(key_of(1)))
    assert evict(directory, *found, 3 * SIZE, never) == 2 * SIZE
    assert left(directory, 10) == [1, *range(3, 10)]


def test_equal_times_are_no_reason_to_remove_more(tmp_path):
    directory = filled(tmp_path, 10)
    for number in range(10):
        os.utime(directory.path(key_of(number)), (5, 5))
    assert evict(directory, *measure(directory, never), 4 * SIZE, never) == 4 * SIZE
    assert len(left(directory, 10)) == 6


def test_two_engines_at_once_remove_what_one_would(tmp_path):
    directory = filled(tmp_path, 200)
    found = [measure(directory, never) for _ in range(2)]
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda measured: evict(directory, *measured, 100 * SIZE, never), found))
    assert left(directory, 200) == list(range(100, 200))


def test_an_empty_directory_and_more_than_there_is(tmp_path):
    directory = filled(tmp_path, 0)
    assert evict(directory, *measure(directory, never), SIZE, never) == 0
    directory = filled(tmp_path, 2)
    assert evict(directory, *measure(directory, never), 10 * SIZE, never) == 2 * SIZE
    assert not left(directory, 2)
