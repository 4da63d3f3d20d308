"""Stores in a directory as the tests have them; run as a script, it writes to one until it is killed."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

from jaxengine.device.tiers.disk.directory import BlockDirectory
from jaxengine.device.tiers.disk.disk_store import DiskStore
from tests.device.tiers.blocks import block_of, key_of

SHAPE = (28, 16, 16, 32)


def open_store(path: str | Path, max_bytes: int = 1 << 26) -> DiskStore:
    return DiskStore(BlockDirectory.open(path), max_bytes)


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < end, "it did not happen within five minutes"
        time.sleep(0.005)


def write_forever(path: str) -> None:
    """Write the blocks 0 to 15 anew, again and again."""
    store = open_store(path, 1 << 30)
    blocks = {key_of(number): block_of(number, shape=SHAPE) for number in range(16)}
    print("ready", flush=True)
    while True:
        for key, block in blocks.items():
            store.drop(key)
            store.store(key, block)


if __name__ == "__main__":
    write_forever(sys.argv[1])
