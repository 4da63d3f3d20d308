"""The stores behind an engine's host memory, opened as the options ask for them."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import jax

from jaxengine.device.runtime.block_moves import all_moved, block_bytes
from jaxengine.device.runtime.space import ProgramSpace
from jaxengine.device.tiers.block_store import BlockStore
from jaxengine.device.tiers.disk.directory import BlockDirectory
from jaxengine.device.tiers.disk.disk_store import DiskStore
from jaxengine.device.tiers.keys import Keys, Namespace
from jaxengine.device.tiers.outer_stores import OuterStores, PartLayout
from jaxengine.device.weights.digest import array_digests, weights_digest
from jaxengine.options.cache import CacheConfig
from jaxengine.options.disk import GIB, DiskOptions
from jaxengine.startup.model_plan import ModelPlan
from jaxengine.startup.program_context import program_context
from jaxengine.startup.progress import Progress
from jaxengine.startup.transfer import Transfer, TransferPlan, open_transfer, plan_transfer

logger = logging.getLogger("jaxengine")

MOST_BYTES = 1 << 40
"""Of a directory whose size was not said: half of its file system, but no more than that."""


@dataclass(frozen=True)
class OuterPlan:
    """What will be behind the host's blocks, as far as it can be had before weights are loaded; `secret` makes keys."""

    directory: BlockDirectory | None
    transfer: TransferPlan | None
    secret: bytes


@dataclass
class Outer:
    """The stores, and the secret under which an engine's chains of prefixes have digests that others find.

    `digests` are those of all parameters by path, `name` makes a namespace of the weights' digest. `transfer` is the engine's
    part among engines that fetch pages from each other.
    """

    stores: OuterStores
    secret: bytes
    digests: dict[str, bytes]
    name: Callable[[bytes], bytes]
    transfer: Transfer | None

    def written(self, parameters: Mapping[str, jax.Array]) -> None:
        """These have been given other numbers: pages of the others are not found from now on. It reads all of these."""
        self.digests |= array_digests(parameters)
        self.stores.renew(self.name(weights_digest(self.digests)))


def plan_outer_stores(cache: CacheConfig) -> OuterPlan | None:
    """Open the directory that is asked for, and have what a transfer needs; None where nothing is asked for.

    A directory that cannot be used is warned of. Engines that fetch pages from each other have one secret, and with it share a
    directory too.

    Raises:
        ConfigError: the path can never be such a directory; the secret cannot be read, or the address is taken.
    """
    directory, transfer = _open_directory(cache), plan_transfer(cache)
    if transfer is not None:
        return OuterPlan(directory, transfer, transfer.secret)
    return None if directory is None else OuterPlan(directory, None, directory.secret)


def open_outer_stores(
    cache: CacheConfig,
    model: ModelPlan,
    space: ProgramSpace,
    parameters: Mapping[str, jax.Array],
    plan: OuterPlan | None,
    progress: Progress,
) -> Outer | None:
    """What is behind the host's blocks; None where that is nothing.

    `parameters` are those of the first step, measured scales among them: all of them are read.
    """
    if plan is None:
        return None
    with progress.phase("digest"):
        digests = array_digests(parameters)
    name = partial(namespace, model, space)
    own = name(weights_digest(digests))
    stores, transfer, options = list[BlockStore](), None, cache.disk
    if plan.transfer is not None:
        transfer = open_transfer(plan.transfer, own, block_bytes=max(block_bytes(space)))
        stores += transfer.stores
        progress.say("digest", f"KV pages of these weights are {transfer.describe()}")
    if plan.directory is not None and options is not None:
        most = _max_bytes(options)
        stores.append(DiskStore(plan.directory, most, reads=options.reads, writes=options.writes))
        kept = f"kept in {plan.directory.root}, at most {most / GIB:.1f} GiB of all"
        progress.say("digest", f"KV pages of these weights are {kept}")
    outer = OuterStores(Keys(own, plan.secret), group_layouts(space), stores)
    return Outer(outer, _chain_secret(plan.secret), digests, name, transfer)


def _open_directory(cache: CacheConfig) -> BlockDirectory | None:
    options = cache.disk
    if options is None:
        return None
    try:
        return BlockDirectory.open(options.directory)
    except OSError as error:
        logger.warning("KV pages are not kept in %s: %s", options.directory, error)
        return None


def namespace(model: ModelPlan, space: ProgramSpace, weights: bytes) -> bytes:
    """All that the bytes of a page of this engine depend on besides its tokens."""
    computation = {
        **program_context(model),
        "attention_backend": space.attention_backend,
        "devices": str(space.device_layout),
    }
    layout = tuple(f"{group}: {parts}" for group, parts in group_layouts(space).items())
    return Namespace(computation=computation, weights=weights, page_size=space.page_size, layout=layout).digest


def group_layouts(space: ProgramSpace) -> dict[int, PartLayout]:
    """How this host keeps a page, by cache group: groups are numbered through the pools. Snapshots are one more, the last."""
    moved = all_moved(space)
    groups = [of_pool.parts for pool, of_pool in zip(space.cache.pools, moved, strict=False) for _ in pool.windows]
    return dict(enumerate([*groups, *(snapshots.parts for snapshots in moved[len(space.cache.pools) :])]))


def _chain_secret(secret: bytes) -> bytes:
    """Another secret of the same: digests of chains never leave the host half under the one that keys are made with."""
    return hashlib.blake2b(b"chains of prefixes", key=secret, digest_size=32).digest()


def _max_bytes(options: DiskOptions) -> int:
    if options.max_bytes is not None:
        return options.max_bytes
    system = os.statvfs(options.directory)
    return min(system.f_blocks * system.f_frsize // 2, MOST_BYTES)
