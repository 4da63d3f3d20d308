"""The store of pages on disk by itself: blocks and bytes a second, beside what the disk does with plain files. JSON out.

Blocks have the shape of a page of Qwen3-0.6B in bfloat16. The raw rates are those of one large file: written and synced, read
after the page cache was dropped (which needs root; else `cold` is null), and read again from the page cache. Those of the store
are of as many bytes, with a sync of the disk at the end of writing as for the raw file.

    python benchmarks/disk_store.py --directory /var/tmp --gib 2 --threads 1 2 4
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from jaxengine.bench import machine
from jaxengine.contract.page_name import PageName
from jaxengine.device.tiers.block_store import Block
from jaxengine.device.tiers.disk.directory import BlockDirectory
from jaxengine.device.tiers.disk.disk_store import DiskStore
from jaxengine.device.tiers.disk.eviction import measure

LAYERS, HEADS, HEAD = 28, 8, 128  # of Qwen3-0.6B, keys and values each
GIB, MIB = 1 << 30, 1 << 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", default="/var/tmp")
    parser.add_argument("--gib", type=float, default=2.0)
    parser.add_argument("--page-sizes", type=int, nargs="+", default=[16, 128], help="tokens in a page")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--files", type=int, default=200_000, help="small files that are looked through")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(dir=arguments.directory))
    try:
        stores = [
            store_rates(folder, int(arguments.gib * GIB), page_size, threads)
            for page_size in arguments.page_sizes
            for threads in arguments.threads
        ]
        result = {
            "benchmark": "python " + " ".join(sys.argv),
            "machine": machine.describe(),
            "raw": raw_rates(folder, int(arguments.gib * GIB)),
            "stores": stores,
            "look": look(folder, arguments.files),
        }
    finally:
        shutil.rmtree(folder)
    print(json.dumps(result, indent=2))


def store_rates(folder: Path, size: int, page_size: int, num_threads: int) -> dict[str, Any]:
    """What so many threads write and read in blocks of a page."""
    shape = (LAYERS, page_size, 2 * HEADS, HEAD)
    values = np.random.default_rng(0).integers(0, 1 << 16, shape, np.uint16).view(ml_dtypes.bfloat16)
    bounds = ((0, page_size), (0, 2 * HEADS), (0, HEAD))
    keys = [hashlib.sha256(b"%d" % number).digest() for number in range(size // values.nbytes)]
    name = PageName(0, bytes(32), bytes(32), bytes(4 * page_size))
    place = folder / "store"
    with closing(DiskStore(BlockDirectory.open(place), 1 << 50)) as store, ThreadPoolExecutor(num_threads) as threads:

        def run(one: Callable[[bytes], object]) -> float:
            begin = time.perf_counter()
            assert all(threads.map(one, keys))
            return time.perf_counter() - begin

        write = run(lambda key: store.store(key, Block(name, {bounds: values})))
        begin = time.perf_counter()
        os.sync()
        synced = write + time.perf_counter() - begin
        cold = run(store.fetch) if drop_page_cache() else None
        warm = run(store.fetch)
        begin = time.perf_counter()
        assert all(store.has(keys))
        has = time.perf_counter() - begin
    shutil.rmtree(place)
    rates = {"write": write, "write_and_sync": synced, "read_cold": cold, "read_warm": warm}
    return {
        "page_size": page_size,
        "block_bytes": values.nbytes,
        "threads": num_threads,
        "gb_per_s": {what: seconds and gb_per_s(len(keys) * values.nbytes, seconds) for what, seconds in rates.items()},
        "blocks_per_s": {what: seconds and round(len(keys) / seconds) for what, seconds in rates.items()},
        "has_us": round(has / len(keys) * 1e6, 2),
    }


def raw_rates(folder: Path, size: int) -> dict[str, Any]:
    """One file in writes and reads of 4 MiB."""
    path, chunk = folder / "raw", memoryview(np.random.default_rng(0).bytes(4 * MIB))

    def read() -> float:
        with path.open("rb", buffering=0) as file:
            buffer = bytearray(len(chunk))
            begin = time.perf_counter()
            while file.readinto(buffer):
                pass
            return time.perf_counter() - begin

    begin = time.perf_counter()
    with path.open("wb", buffering=0) as file:
        for _ in range(size // len(chunk)):
            file.write(chunk)
        os.fsync(file.fileno())
    write = time.perf_counter() - begin
    cold = read() if drop_page_cache() else None
    warm = read()
    path.unlink()
    seconds = {"write_and_sync": write, "read_cold": cold, "read_warm": warm}
    return {"gb_per_s": {what: took and gb_per_s(size, took) for what, took in seconds.items()}}


def look(folder: Path, num_files: int) -> dict[str, Any]:
    """How long it takes to find the sizes and times of so many files, without pauses."""
    directory = BlockDirectory.open(folder / "many")
    for number in range(num_files):
        descriptor, aside = directory.open_aside()
        os.close(descriptor)
        directory.keep(aside, directory.path(hashlib.sha256(b"%d" % number).digest()))

    def took() -> float:
        begin = time.perf_counter()
        times, _ = measure(directory, lambda: False)
        assert len(times) == num_files
        return round(time.perf_counter() - begin, 2)

    drop_page_cache()
    return {"files": num_files, "first_s": took(), "again_s": took()}


def drop_page_cache() -> bool:
    """Whether it could be."""
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3")
    except OSError:
        return False
    return True


def gb_per_s(size: int, seconds: float) -> float:
    return round(size / seconds / 1e9, 2)


if __name__ == "__main__":
    main()
