"""The stores outside the process behind one door, by the names of pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from jaxengine.contract.page_name import PageName
from jaxengine.device.tiers.block_store import Block, BlockStore, Parts
from jaxengine.device.tiers.keys import Keys

if TYPE_CHECKING:
    from jaxengine.device.weights.placement import Bounds

PartLayout: TypeAlias = "Mapping[Bounds, tuple[tuple[int, ...], np.dtype]]"
"""Shape and type of each part that this host has of a page."""


class Fetched(NamedTuple):
    """A page's bytes and the `source` of the store that had them."""

    parts: Parts
    source: str


class OuterStores:
    """Asks the stores in order and takes a block from none whose name or layout is not exactly what is wanted.

    Any thread may call any method; all may block, and none raises for what goes wrong outside.

    Args:
        keys: of this engine's namespace.
        layouts: how this host keeps a page, by cache group.
        stores: the nearest first.
    """

    def __init__(self, keys: Keys, layouts: Mapping[int, PartLayout], stores: Sequence[BlockStore]) -> None:
        self._keys = keys
        self._layouts = layouts
        self._stores = tuple(stores)

    def has(self, names: Sequence[PageName]) -> list[bool]:
        """Whether some store likely has each page: a hint."""
        keys = [self._keys.key(name.group, name.digest) for name in names]
        found = [False] * len(keys)
        for store in self._stores:
            missing = [number for number, there in enumerate(found) if not there]
            for number, there in zip(missing, store.has([keys[number] for number in missing]), strict=True):
                found[number] = there
        return found

    def fetch(self, name: PageName) -> Fetched | None:
        """The page from the first store that has it. A block under this key with something else in it is dropped there."""
        key = self._keys.key(name.group, name.digest)
        for store in self._stores:
            block = store.fetch(key)
            if block is None:
                continue
            if block.name == name and self._fits(block):
                return Fetched(block.parts, store.source)
            store.drop(key)
        return None

    @property
    def keys(self) -> Keys:
        """Those of pages that are computed now."""
        return self._keys

    def store(self, name: PageName, parts: Parts, keys: Keys) -> bool:
        """Offer a page to every store; whether one of them kept it. The arrays are not looked at afterwards.

        `keys` are those of when it was computed: there may be other weights by now.
        """
        key, block = keys.key(name.group, name.digest), Block(name, parts)
        kept = [store.store(key, block) for store in self._stores]
        return any(kept)

    def expect(self, names: Sequence[PageName]) -> None:
        """Let every store know that these will be offered in a moment. Does not block."""
        keys = [self._keys.key(name.group, name.digest) for name in names]
        for store in self._stores:
            store.expect(keys)

    def renew(self, namespace: bytes) -> None:
        """From now on pages are of another namespace, as with other weights."""
        self._keys = self._keys.of(namespace)
        for store in self._stores:
            store.renew(namespace)

    def close(self) -> None:
        """Close every store."""
        for store in self._stores:
            store.close()

    def _fits(self, block: Block) -> bool:
        wanted = self._layouts.get(block.name.group)
        return wanted == {bounds: (part.shape, part.dtype) for bounds, part in block.parts.items()}
