"""The store of an engine that fetches what others have computed."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Sequence

from jaxengine.device.tiers.block_store import Block
from jaxengine.device.tiers.disk.block_file import DamagedError, decode
from jaxengine.device.tiers.peers.peer import Peer
from jaxengine.device.tiers.peers.session import deadline
from jaxengine.device.tiers.rest import RareWarnings
from jaxengine.options.transfer import Address, TransferOptions

logger = logging.getLogger("jaxengine")

MOST_PEERS = 64
MOST_REMEMBERED = 65_536
PATIENCE_S = 0.5
"""How long an engine that is just about to lay out a block is waited for."""
LOOKUP_S = 1.0
"""After so long no further engine is asked whether it has blocks: nobody waits for the answer any more."""


class PeerStore:
    """Blocks of other engines: those of the options, and those that requests have named since.

    The one named last is asked first, and the next one only for what it lacks. Nothing is stored here. A name in a request may be
    that of anything: what has not proved to be an engine is left alone once it did not, however often it is named.

    Args:
        largest: bytes of the largest block, as it travels.
    """

    source = "p2p"

    def __init__(self, options: TransferOptions, secret: bytes, namespace: bytes, *, largest: int) -> None:
        self._options = options
        self._secret = secret
        self._namespace = namespace
        self._largest = largest
        self._lock = threading.Lock()
        self._peers: OrderedDict[Address, Peer] = OrderedDict()
        self._owners: OrderedDict[bytes, Peer] = OrderedDict()
        self._warnings = RareWarnings()
        self._fixed = frozenset(address for address in options.peers if address.port is not None)
        for address in self._fixed:
            self.know(address)

    def know(self, address: Address) -> None:
        """Ask this engine from now on, at once even if it did not answer lately. One that may not be asked is passed over."""
        if address.port is None or not self._options.may_ask(address):
            self._warnings.warn("peer", "pages of %s are not fetched: it is not among the peers", address)
            return
        with self._lock:
            peer = self._peers.get(address)
            if peer is None:
                peer = self._peers[address] = Peer(
                    address,
                    self._secret,
                    self._namespace,
                    largest=self._largest,
                    shared_memory=self._options.shared_memory,
                )
            self._peers.move_to_end(address, last=False)
            gone = self._make_room()
        peer.wake()
        if gone is not None:
            gone.close()

    def has(self, keys: Sequence[bytes]) -> Sequence[bool]:
        """As in `BlockStore`."""
        found, until = [False] * len(keys), deadline(LOOKUP_S)
        for peer in self._known():
            missing = [number for number, there in enumerate(found) if not there]
            if not missing or deadline(0.0) > until:
                break
            answer = peer.has([keys[number] for number in missing], patience_s=PATIENCE_S)
            there = [number for number, is_there in zip(missing, answer, strict=True) if is_there]
            for number in there:
                found[number] = True
            self._remember([keys[number] for number in there], peer)
        return found

    def fetch(self, key: bytes) -> Block | None:
        """As in `BlockStore`."""
        with self._lock:
            owner = self._owners.pop(key, None)
        for peer in (owner,) if owner is not None else self._known():
            data = peer.fetch(key)
            if data is None:
                continue
            try:
                return decode(data, key)
            except DamagedError as error:
                self._warnings.warn(
                    "damaged", "a page of %s came damaged and is computed instead: %s", peer.address, error
                )
        return None

    def store(self, key: bytes, block: Block) -> bool:
        """As in `BlockStore`: never."""
        return False

    def drop(self, key: bytes) -> None:
        """As in `BlockStore`: what others have stays."""

    def expect(self, keys: Sequence[bytes]) -> None:
        """Nothing is stored here."""

    def renew(self, namespace: bytes) -> None:
        """From now on pages of another namespace are wanted."""
        with self._lock:
            self._namespace = namespace
            self._owners.clear()
        for peer in self._known():
            peer.renew(namespace)

    def close(self) -> None:
        """As in `BlockStore`."""
        for peer in self._known():
            peer.close()

    def _known(self) -> list[Peer]:
        with self._lock:
            return list(self._peers.values())

    def _make_room(self) -> Peer | None:
        """Forget one of too many, but neither the latest nor one of the options: what is no engine first, then the oldest."""
        others = [address for address in reversed(self._peers) if address not in self._fixed]
        if len(others) <= MOST_PEERS:
            return None
        return self._peers.pop(min(others[:-1], key=lambda address: self._peers[address].is_proven))

    def _remember(self, keys: Sequence[bytes], peer: Peer) -> None:
        with self._lock:
            for key in keys:
                self._owners[key] = peer
            while len(self._owners) > MOST_REMEMBERED:
                self._owners.popitem(last=False)
