"""Pages from one process to another by themselves: bytes a second over TCP on loopback and through shared memory. JSON out.

Blocks have the shape of a page of Qwen3-0.6B in bfloat16, 16 tokens. The producer is a process of its own with all of them laid
out; this one asks for each once, in random order, with so many threads, and checks what comes as an engine does. The least
seconds of `--rounds` count. `has_ms` is the median of asking for 256 keys at once.

    python -m benchmarks.page_transfer --mib 512 --threads 1 2 4 > benchmarks/results/page_transfer.json
"""

from __future__ import annotations

import argparse
import hashlib
import json
import secrets
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import ml_dtypes
import numpy as np

from jaxengine.bench import machine
from jaxengine.contract.page_name import PageName
from jaxengine.device.tiers.block_store import Block
from jaxengine.device.tiers.peers.exports import Exports
from jaxengine.device.tiers.peers.peer_store import PeerStore
from jaxengine.device.tiers.peers.server import listen
from jaxengine.options.transfer import Address, TransferOptions

SHAPE = (1, 16, 8, 28 * 2 * 128)
"""Lanes, tokens, heads, and what all layers keep of one."""
NAMESPACE = bytes(32)
MIB = 1 << 20
GIB = 1 << 30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    count = arguments.mib * MIB // block(0).nbytes
    if arguments.serve:
        serve(count)
        return
    secret = secrets.token_hex(32)
    command = [sys.executable, "-m", "benchmarks.page_transfer", "--serve", "--mib", str(arguments.mib)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as producer:
        assert producer.stdin is not None
        assert producer.stdout is not None
        producer.stdin.write(f"{secret}\n")
        producer.stdin.flush()
        port = int(producer.stdout.readline())
        results = [
            min(
                (
                    fetch_all(port, secret.encode(), count, threads, shared_memory=shared)
                    for _ in range(arguments.rounds)
                ),
                key=lambda result: result["seconds"],
            )
            for shared in (False, True)
            for threads in arguments.threads
        ]
        producer.stdin.close()
    print(json.dumps({"benchmark": "page_transfer", "machine": machine.describe(), "results": results}, indent=2))


def options(*, shared_memory: bool = True) -> TransferOptions:
    """Those of both sides, on this machine."""
    return TransferOptions(
        engine_id="benchmark",
        serves=True,
        fetches=True,
        host="127.0.0.1",
        port=0,
        advertised="127.0.0.1",
        buffer_bytes=4 * GIB,
        peers=(),
        shared_memory=shared_memory,
        secret_file=None,
        secret_env=None,
    )


def serve(count: int) -> None:
    """Lay out blocks, say where, and wait for the end of the input."""
    secret = sys.stdin.readline().strip().encode()
    with closing(Exports(options(), listen("127.0.0.1", 0), secret, NAMESPACE)) as exports:
        for number in range(count):
            assert exports.store(key(number), block(number))
        print(exports.server.port, flush=True)
        sys.stdin.read()


def fetch_all(port: int, secret: bytes, count: int, threads: int, *, shared_memory: bool) -> dict[str, Any]:
    """Fetch every block once."""
    store = PeerStore(options(shared_memory=shared_memory), secret, NAMESPACE, largest=2 * block(0).nbytes)
    store.know(Address("127.0.0.1", port))
    keys = [key(number) for number in np.random.default_rng(7).permutation(count).tolist()]
    with closing(store), ThreadPoolExecutor(threads) as pool:
        asked = []
        for _ in range(50):
            begin = time.perf_counter()
            assert all(store.has(keys[:256]))
            asked.append(time.perf_counter() - begin)
        begin, used = time.perf_counter(), time.process_time()
        found = sum(pool.map(lambda each: store.fetch(each) is not None, keys))
        seconds, used = time.perf_counter() - begin, time.process_time() - used
    assert found == count, "a block was lost"
    nbytes = count * block(0).nbytes
    return {
        "way": "shared memory" if shared_memory else "TCP",
        "threads": threads,
        "blocks": count,
        "bytes": nbytes,
        "seconds": round(seconds, 3),
        "gib_per_s": round(nbytes / GIB / seconds, 3),
        "consumer_cpu_s_per_gib": round(used * GIB / nbytes, 3),
        "blocks_per_s": round(count / seconds, 1),
        "has_ms": round(1000 * statistics.median(asked), 3),
    }


def key(number: int) -> bytes:
    """A key like any other."""
    return hashlib.blake2b(b"%d" % number, digest_size=32).digest()


def block(number: int) -> Block:
    """A page full of a number."""
    name = PageName(0, key(number), bytes(32), bytes(64))
    bounds = tuple((0, size) for size in SHAPE[1:])
    return Block(name, {bounds: np.full(SHAPE, number % 251, ml_dtypes.bfloat16)})


if __name__ == "__main__":
    main()
