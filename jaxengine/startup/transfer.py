"""An engine's part in the transfer of pages between engines, as the options ask for it."""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jaxengine.contract.transfer import TransferFacts
from jaxengine.device.tiers.block_store import BlockStore
from jaxengine.device.tiers.peers.exports import Exports
from jaxengine.device.tiers.peers.peer_store import PeerStore
from jaxengine.device.tiers.peers.server import listen
from jaxengine.options.cache import CacheConfig
from jaxengine.options.transfer import Address, TransferOptions, read_transfer_config

HEADER_BYTES = 1 << 20
"""More than a block has beside its bytes: names, shapes, and the tokens of a page."""


@dataclass(frozen=True)
class TransferPlan:
    """What is asked for, with the secret read and the address taken: mistakes in them are told before anything is loaded."""

    options: TransferOptions
    secret: bytes
    listener: socket.socket | None


@dataclass(frozen=True)
class Transfer:
    """The stores that take part, the nearest first, what the front is told, and who is told of other engines."""

    stores: Sequence[BlockStore]
    facts: TransferFacts
    know_peer: Callable[[Address], None] | None

    def describe(self) -> str:
        """What the log says of it, after `KV pages are`."""
        served = f"served at {self.facts.address}" if self.facts.serves else ""
        fetched = "fetched from other engines" if self.facts.fetches else ""
        return " and ".join(filter(None, (served, fetched)))


def plan_transfer(cache: CacheConfig) -> TransferPlan | None:
    """Read the secret and take the address; None where no transfer is asked for.

    Raises:
        ConfigError: one of them cannot be had.
    """
    options = read_transfer_config(cache.kv_transfer_config)
    if options is None:
        return None
    # Of any length, and of one that every hash takes as a key.
    secret = hashlib.blake2b(options.secret(), digest_size=32).digest()
    return TransferPlan(options, secret, listen(options.host, options.port) if options.serves else None)


def open_transfer(plan: TransferPlan, namespace: bytes, *, block_bytes: int) -> Transfer:
    """Serve pages, or be ready to fetch them. `block_bytes` are those of the largest page on this host."""
    options, stores = plan.options, list[BlockStore]()
    if plan.listener is not None:
        stores.append(Exports(options, plan.listener, plan.secret, namespace))
    peers = None
    if options.fetches:
        peers = PeerStore(options, plan.secret, namespace, largest=block_bytes + HEADER_BYTES)
        stores.append(peers)
    facts = TransferFacts(
        engine_id=options.engine_id,
        serves=options.serves,
        fetches=options.fetches,
        address=Address(options.advertised, options.port),
    )
    return Transfer(stores, facts, None if peers is None else peers.know)
