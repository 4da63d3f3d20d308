"""The store of an engine that lets others have what it computes: it lays blocks out, and answers who asks for them."""

from __future__ import annotations

import socket
from collections.abc import Sequence

from jaxengine.device.tiers.block_store import Block
from jaxengine.device.tiers.disk.block_file import DamagedError, decode, encode
from jaxengine.device.tiers.peers.ring import HAS_SHARED_MEMORY, Ring
from jaxengine.device.tiers.peers.server import PageServer
from jaxengine.device.tiers.peers.shelf import Shelf
from jaxengine.options.transfer import TransferOptions


class Exports:
    """Blocks in the host's memory, at most `options.buffer_bytes` of them, which engines of the same secret may fetch.

    The engine itself finds them too. `listener` is where the others ask.
    """

    source = "host"

    def __init__(self, options: TransferOptions, listener: socket.socket, secret: bytes, namespace: bytes) -> None:
        self.shelf = Shelf(Ring(options.buffer_bytes, shared=options.shared_memory and HAS_SHARED_MEMORY))
        self.server = PageServer(self.shelf, listener, secret=secret, namespace=namespace)

    def expect(self, keys: Sequence[bytes]) -> None:
        """These will be stored in a moment: whoever asks for them may wait."""
        self.shelf.expect(keys)

    def has(self, keys: Sequence[bytes]) -> Sequence[bool]:
        """As in `BlockStore`."""
        return self.shelf.has(keys)

    def fetch(self, key: bytes) -> Block | None:
        """As in `BlockStore`."""
        data = self.shelf.take(key)
        try:
            return None if data is None else decode(data, key)
        except DamagedError:
            self.shelf.drop(key)
            return None

    def store(self, key: bytes, block: Block) -> bool:
        """As in `BlockStore`."""
        pieces = encode(key, block)
        return self.shelf.put(key, pieces, sum(len(piece) for piece in pieces))

    def drop(self, key: bytes) -> None:
        """As in `BlockStore`."""
        self.shelf.drop(key)

    def renew(self, namespace: bytes) -> None:
        """From now on only engines of another namespace are welcome."""
        self.server.namespace = namespace

    def close(self) -> None:
        """As in `BlockStore`."""
        self.server.close()
        self.shelf.ring.close()
