"""The host's memory behind the pools of the device, and the outer stores behind that: what is kept there, and what moves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

from jaxengine.contract.batch import FromHost, Move
from jaxengine.contract.page_name import PageName
from jaxengine.contract.tiers import Ask, Cancel, Loaded, Stage, TierStats, TierTraffic, Transfer
from jaxengine.host.kvcache.holding import GroupPages, Holding
from jaxengine.host.kvcache.host_blocks import HostBlocks, Underway
from jaxengine.host.kvcache.pool import PagePool


class HostTier:
    """The accounts of all blocks, `num_blocks` of each pool.

    Decisions pile up here until the loop takes them in every step: `take_transfers`, `take_moves`, `take_later`.

    Args:
        most_leaving: pages that leave the device with one step.
        outer: there are outer stores behind the blocks.
        snapshots: blocks for copies of recurrent layers' states, whose pool comes behind the others; 0: there are no such.

    Attributes:
        block_s: seconds that a block of each pool takes to the device; empty where nobody knows.
    """

    def __init__(
        self, num_blocks: Sequence[int], *, most_leaving: int = 64, outer: bool = False, snapshots: int = 0
    ) -> None:
        self.underway = Underway(most_leaving)
        of_pools = [HostBlocks(pool, count, self.underway, saves=outer) for pool, count in enumerate(num_blocks)]
        if snapshots:
            of_pools.append(HostBlocks(len(of_pools), snapshots, self.underway, saves=outer, together=1))
        self.blocks = tuple(of_pools)
        self.outer = outer
        self.block_s: Sequence[float] = ()

    def stand_behind(self, pools: Sequence[PagePool]) -> None:
        """Take what these pools evict, and have what they look for."""
        for pool, blocks in zip(pools, self.blocks, strict=True):
            pool.blocks = blocks
            blocks.device = (pool.index, pool.pages)

    @property
    def has_pending(self) -> bool:
        """Whether there is anything to take."""
        underway = self.underway
        return bool(underway.moves or underway.transfers or underway.later or any(one.drains for one in self.blocks))

    @property
    def is_loading(self) -> bool:
        """Whether something is being loaded to blocks."""
        return any(blocks.num_loading for blocks in self.blocks)

    def ask(self, question: Ask) -> None:
        """Ask the outer stores."""
        self.underway.transfers.append(question)

    def stage(self, moves: Sequence[FromHost]) -> None:
        """Bring what these moves need to the device."""
        self.underway.transfers.append(Stage(tuple(moves)))

    def cancel(self, moves: Sequence[FromHost]) -> None:
        """These moves, which were staged, will not be made."""
        self.underway.transfers.append(Cancel(tuple(moves)))

    def write(self, moves: Sequence[FromHost]) -> None:
        """Let these moves be made, which have been staged."""
        self.underway.moves += moves
        self.underway.written |= {(move.pool, move.page) for move in moves}

    def take_transfers(self) -> Sequence[Transfer]:
        """What is to begin before the moves that `take_moves` returns next."""
        transfers, self.underway.transfers = self.underway.transfers, []
        return transfers

    def take_moves(self) -> tuple[Move, ...]:
        """The moves to make before anything else is written, which are made from now on."""
        underway = self.underway
        for blocks in reversed(self.blocks):  # of snapshots there are few, and without them pages are of no use
            if blocks.drains:
                blocks.drain()
        if not underway.moves:
            return ()
        moves = tuple(underway.moves)
        underway.moves.clear()
        underway.written.clear()
        underway.num_leaving = 0
        for blocks in self.blocks:
            blocks.settle()
        return moves

    def take_later(self) -> Sequence[Transfer]:
        """What is to begin after those moves."""
        later, self.underway.later = self.underway.later, []
        return later

    def loaded(self, news: Loaded) -> PageName | None:
        """Take note of what became of a load; which page it was of, if anybody wants it."""
        return self.blocks[news.pool].loaded(news.block, news.source)

    def source(self, move: FromHost) -> str:
        """The tier from which came what this move brings to the device."""
        return self.blocks[move.pool].source(move.block)

    def seconds_to_come(self, holding: Holding) -> float:
        """How long what a sequence found here takes to the device, if it is known; 0 else."""
        if not self.block_s:
            return 0.0
        pages = (len(group.coming) * self.block_s[blocks.pool] for group, blocks in _waiting(holding))
        return sum(pages) + sum(self.block_s[move.pool] for move in holding.coming)

    def let_go(self, holding: Holding) -> None:
        """Let go of the blocks that a sequence waits for, or was to wait for."""
        for move in holding.coming:
            self.blocks[move.pool].let_go(move.block)
        holding.coming = ()
        for group, blocks in _waiting(holding):
            for block in group.coming.values():
                blocks.let_go(block)

    def forget(self) -> None:
        """Forget all that lies in blocks or is on its way."""
        self.underway.clear()
        for blocks in self.blocks:
            blocks.forget()

    def stats(self, traffic: Mapping[str, TierTraffic]) -> TierStats:
        """What there is and what moved."""
        return TierStats(
            num_cached_blocks=sum(len(blocks.index) for blocks in self.blocks),
            num_arriving_blocks=sum(blocks.num_arriving for blocks in self.blocks),
            num_free_blocks=sum(blocks.num_free for blocks in self.blocks),
            num_dropped_pages=self.underway.num_dropped,
            traffic=traffic,
        )

    def check(self, holdings: Collection[Holding]) -> None:
        """As `HostBlocks.check`, of each pool; what `holdings` wait for is held.

        Raises:
            LedgerError: the message names the blocks.
        """
        for pool, blocks in enumerate(self.blocks):
            moves = (move.block for holding in holdings for move in holding.coming if move.pool == pool)
            blocks.check(Counter(moves))


def _waiting(holding: Holding) -> Iterator[tuple[GroupPages, HostBlocks]]:
    """The groups of a sequence that lack pages for what lies in blocks."""
    for group in holding.groups:
        if group.coming:
            assert group.pool.blocks is not None
            yield group, group.pool.blocks
