"""What an optimised program does to a pool of pages."""

from __future__ import annotations

import math
import re
from typing import Any

MOVES = ("copy", "copy-start", "convert", "transpose", "gather", "concatenate", "all-gather", "all-to-all")


def pool_sized_moves(hlo: str, pool: tuple[int, ...]) -> list[str]:
    """Instructions that move or convert as many elements as the pool has, inside fusions too."""
    found = []
    for line in hlo.splitlines():
        match = re.search(r"= \(?\w+\[([\d,]+)\]\S* ([\w-]+)\(", line)
        if match and match[2] in MOVES and math.prod(map(int, match[1].split(","))) >= math.prod(pool):
            found.append(line.strip())
    return found


def check_in_place(compiled: Any, pool: tuple[int, ...], *, itemsize: int) -> None:
    """The donated pool is the result's memory, nothing of its size is allocated beside it, and nothing copies it."""
    memory = compiled.memory_analysis()
    pool_bytes = math.prod(pool) * itemsize
    assert memory.alias_size_in_bytes >= pool_bytes
    assert memory.temp_size_in_bytes < pool_bytes / 2
    assert pool_sized_moves(compiled.as_text(), pool) == []
