"""Blocks that differ by number, and keys for them."""

from __future__ import annotations

import hashlib

import numpy as np

from jaxengine.contract.page_name import PageName
from jaxengine.device.tiers.block_store import Block

BOUNDS = ((0, 4), (0, 2))


def key_of(number: int) -> bytes:
    return hashlib.blake2b(b"%d" % number, digest_size=32).digest()


def block_of(number: int, *, shape: tuple[int, ...] = (2, 4, 2), dtype=np.float32) -> Block:
    name = PageName(0, b"digest %d" % number, b"parent %d" % number, b"tokens %d" % number)
    values = np.random.default_rng(number).integers(0, 100, shape)
    return Block(name, {BOUNDS: values.astype(dtype)})


def equal(first: Block, second: Block) -> bool:
    """Whether names, layouts and all bits are."""
    layouts = [{bounds: (part.shape, part.dtype) for bounds, part in block.parts.items()} for block in (first, second)]
    return (
        first.name == second.name
        and layouts[0] == layouts[1]
        and all(first.parts[bounds].tobytes() == second.parts[bounds].tobytes() for bounds in first.parts)
    )
