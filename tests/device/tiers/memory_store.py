"""A store in memory: what `BlockStore` promises and nothing else, for tests of those who use one."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

from jaxengine.device.tiers.block_store import Block


class MemoryStore:
    """Keeps the latest `capacity` blocks. Tests may look at `blocks`, and set `failing` to have it find and keep nothing."""

    source = "memory"

    def __init__(self, capacity: int = 1 << 30) -> None:
        self.capacity = capacity
        self.blocks: OrderedDict[bytes, Block] = OrderedDict()
        self.failing = False
        self.expected: list[bytes] = []
        self.namespace = b""
        self._lock = threading.Lock()

    def has(self, keys: Sequence[bytes]) -> Sequence[bool]:
        return [not self.failing and key in self.blocks for key in keys]

    def fetch(self, key: bytes) -> Block | None:
        with self._lock:
            block = None if self.failing else self.blocks.get(key)
            if block is not None:
                self.blocks.move_to_end(key)
            return block

    def store(self, key: bytes, block: Block) -> bool:
        with self._lock:
            if self.failing or key in self.blocks:
                return False
            parts = {bounds: np.array(part) for bounds, part in block.parts.items()}
            self.blocks[key] = Block(block.name, parts)
            if len(self.blocks) > self.capacity:
                self.blocks.popitem(last=False)
            return True

    def expect(self, keys: Sequence[bytes]) -> None:
        self.expected = list(keys)

    def renew(self, namespace: bytes) -> None:
        self.namespace = namespace

    def drop(self, key: bytes) -> None:
        with self._lock:
            self.blocks.pop(key, None)

    def close(self) -> None:
        self.blocks.clear()
