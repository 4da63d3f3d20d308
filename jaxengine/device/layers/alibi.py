"""The slopes of ALiBi: how much a head's score falls with every position between query and key."""

from __future__ import annotations


def alibi_slopes(num_heads: int) -> tuple[float, ...]:
    """As BLOOM and Falcon have them: powers of two, and between them those of the heads beyond a power of two."""
    whole = 1 << (num_heads.bit_length() - 1)
    slopes = [2.0 ** (-8 * head / whole) for head in range(1, whole + 1)]
    between = [2.0 ** (-4 * head / whole) for head in range(1, 2 * (num_heads - whole), 2)]
    return (*slopes, *between)


def mpt_slopes(num_heads: int, *, steepest: float) -> tuple[float, ...]:
    """As MPT has them: every second of as many as a power of two, then the others. `steepest` is the last one's exponent."""
    whole = 1 << (num_heads - 1).bit_length()
    slopes = [2.0 ** (-steepest * head / whole) for head in range(1, whole + 1)]
    return tuple(slopes if whole == num_heads else (*slopes[1::2], *slopes[::2]))[:num_heads]
