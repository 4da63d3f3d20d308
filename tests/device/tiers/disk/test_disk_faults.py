"""Faults that take processes and file systems of their own."""

import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import closing

import pytest

from jaxengine.device.tiers.disk.block_file import decode, read_whole
from jaxengine.device.tiers.disk.directory import BlockDirectory
from tests.device.tiers.blocks import block_of, equal, key_of
from tests.device.tiers.disk.stores import SHAPE, open_store, wait_for

pytestmark = pytest.mark.slow


def test_writers_that_are_killed_leave_whole_blocks_and_nothing_for_long(tmp_path):
    draw = random.Random(0)
    directory = BlockDirectory.open(tmp_path)
    command = [sys.executable, "-m", "tests.device.tiers.disk.stores", str(tmp_path)]
    for _ in range(4):
        writers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
        for writer in writers:
            assert writer.stdout.readline() == "ready\n"
        time.sleep(draw.uniform(0.0, 0.3))
        for writer in writers:
            os.kill(writer.pid, signal.SIGKILL)
            writer.wait()
            writer.stdout.close()
        for number in range(16):
            path = directory.path(key_of(number))
            if os.path.exists(path):
                assert equal(decode(read_whole(path), key_of(number)), block_of(number, shape=SHAPE))
    for file in os.scandir(directory.aside):
        os.utime(file.path, (0, 0))
    with closing(open_store(tmp_path)) as store:
        wait_for(lambda: not os.listdir(directory.aside))
        store.store(key_of(0), block_of(0, shape=SHAPE))
        assert equal(store.fetch(key_of(0)), block_of(0, shape=SHAPE))


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 2 MiB."""
    mount = shutil.which("mount")
    asked = mount and subprocess.run([mount, "-t", "tmpfs", "-o", "size=2m", "tmpfs", tmp_path], capture_output=True)
    if not asked or asked.returncode:
        pytest.skip("needs the right to mount a file system")
    yield tmp_path
    subprocess.run(["umount", "--lazy", tmp_path], check=True)


def test_a_disk_that_is_smaller_than_allowed_keeps_what_fits(small_disk, caplog):
    """Blocks are whole or not there, the oldest make room, and each minute has one warning."""
    shape, found = (28, 16, 16, 4), 0
    with closing(open_store(small_disk, 1 << 30)) as store:
        for number in range(100):
            store.store(key_of(number), block_of(number, shape=shape))
            store._writes.worked()  # not to wait for a rest
            store._writes._until = 0.0
            block = store.fetch(key_of(number))
            assert block is None or equal(block, block_of(number, shape=shape))
            found += block is not None
        wait_for(lambda: store.store(key_of(100), block_of(100, shape=shape)))
    assert found >= 16, "what fits is kept"
    assert len([message for message in caplog.messages if "disk is full" in message]) == 1
    assert not [message for message in caplog.messages if "damaged" in message]


def test_other_files_may_take_the_disk(small_disk):
    with closing(open_store(small_disk, 1 << 30)) as store:
        assert store.store(key_of(0), block_of(0))
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            (small_disk / "other").write_bytes(bytes(1 << 22))
        assert not store.store(key_of(1), block_of(1, shape=(28, 16, 16, 4)))
        (small_disk / "other").unlink()
        wait_for(lambda: store.store(key_of(1), block_of(1, shape=(28, 16, 16, 4))))
