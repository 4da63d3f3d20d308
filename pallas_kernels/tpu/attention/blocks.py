"""How a TPU kernel's work is cut."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Blocks:
    """How rows of `lengths` tokens are cut: tiles of `places` meet blocks of `pages`, with `few` queries per KV head or many."""

    lengths: range
    pages: int
    places: int
    few: bool
    vmem_bytes: int
    """An upper bound of what the kernel keeps in VMEM meanwhile."""


def power_of_two(number: int) -> int:
    """The largest one that is no larger."""
    return 1 << max(0, number.bit_length() - 1)
