"""What a store of blocks outside the process does: a directory, another engine, and the next one alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from numpy.typing import NDArray

from jaxengine.contract.page_name import PageName

if TYPE_CHECKING:
    from jaxengine.device.weights.placement import Bounds

Parts: TypeAlias = "Mapping[Bounds, NDArray[Any]]"
"""The bytes of one page by the part that a device has of it, as the host keeps them: each host has its devices' parts."""


@dataclass(frozen=True, slots=True)
class Block:
    """A page's name and its bytes. Arrays are read-only by agreement, and contiguous."""

    name: PageName
    parts: Parts

    @property
    def nbytes(self) -> int:
        """Bytes of all parts."""
        return sum(part.nbytes for part in self.parts.values())


class BlockStore(Protocol):
    """Blocks by key (`keys.py`). Any thread may call any method at any time, but the engine's loop never does: all may block.

    Nothing here raises for what goes wrong outside: a store that is full, slow, gone or damaged has fewer blocks.
    """

    @property
    def source(self) -> str:
        """What metrics call it: `disk`, `p2p`."""
        ...

    def has(self, keys: Sequence[bytes]) -> Sequence[bool]:
        """Whether each is likely there. Cheap, and a hint: it may be wrong either way."""
        ...

    def fetch(self, key: bytes) -> Block | None:
        """The block that was stored under exactly this key, whole and checked; None: there is none that could be read."""
        ...

    def store(self, key: bytes, block: Block) -> bool:
        """Keep a block. False: it is not kept, because it is there already or the store is full or failing.

        The arrays are not looked at any more when this returns.
        """
        ...

    def expect(self, keys: Sequence[bytes]) -> None:
        """These will be offered in a moment, or got lost: whoever serves others lets them wait. Does not block."""
        ...

    def renew(self, namespace: bytes) -> None:
        """From now on keys are of another namespace (`Namespace.digest`), as with other weights. Does not block."""
        ...

    def drop(self, key: bytes) -> None:
        """Forget a block, if it is there."""
        ...

    def close(self) -> None:
        """Let go of files, sockets and threads. Nothing is called afterwards; closing twice is fine."""
        ...
