"""Sets of token ids as bits, 32 to a word."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from jaxengine.contract.arrays import Bitmask

BITS = 32


def mask_of(tokens: Iterable[int], vocab_size: int) -> Bitmask:
    """These ids of a vocabulary."""
    bits = np.zeros(-(-vocab_size // BITS) * BITS, np.uint8)
    bits[list(tokens)] = 1
    return np.packbits(bits, bitorder="little").view("<u4").astype(np.uint32)


def clear(mask: Bitmask, tokens: Iterable[int]) -> None:
    """Take these ids out of a mask, those of its vocabulary."""
    for token in tokens:
        if token < len(mask) * BITS:
            mask[token // BITS] &= ~np.uint32(1 << token % BITS)


def cleared(mask: Bitmask, tokens: Iterable[int]) -> Bitmask:
    """The mask without these ids, which are of its vocabulary."""
    bits = np.unpackbits(mask.astype("<u4").view(np.uint8), bitorder="little")
    bits[list(tokens)] = 0
    return np.packbits(bits, bitorder="little").view("<u4").astype(np.uint32)
