"""The accounts of the KV cache: which sequence holds which pages. The only door to them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from jaxengine.contract.arrays import Int32s
from jaxengine.contract.batch import FromHost
from jaxengine.contract.media import PromptMedia
from jaxengine.contract.page_name import PageName
from jaxengine.host.kvcache.holding import Holding
from jaxengine.host.kvcache.host_tier import HostTier
from jaxengine.host.kvcache.lookup import Lookup, sources
from jaxengine.host.kvcache.pages import LedgerError
from jaxengine.host.kvcache.pool import PagePool
from jaxengine.host.kvcache.pools import Pools
from jaxengine.host.kvcache.prefix import Chain, Prefixes
from jaxengine.host.kvcache.proofs import check_announced, check_held, check_holdings, check_pool
from jaxengine.host.kvcache.snapshots import Snapshots


@dataclass(frozen=True, slots=True)
class PrefixStats:
    """Tokens looked up in the prefix cache since the ledger was made, and tokens found there: on the device, and behind it."""

    queries: int
    hits: int
    external_hits: int = 0


class Ledger:
    """Hands out pages to sequences, shares equal prefixes, and proves that no page is lost or held twice by mistake.

    Positions to pages, with a page size of 4 and a sequence that holds pages 7, 2 and 9:

        position   0  1  2  3 | 4  5  6  7 | 8  9 10 11
        page             7    |      2     |      9          page  = pages[position // 4]
        slot      28 29 30 31 | 8  9 10 11 |36 37 38 39      slot  = page * 4 + position % 4

        grow(sequence, 9)     ceil(9 / 4) = 3 pages: position 8 is the first of page 9
        commit(..., 9)        9 // 4 = 2 full pages: 7 and 2 may be found by others, 9 may not

    A page that several sequences hold is full, and nobody writes to it.

    A page is free, idle (nobody holds it, its content can still be found) or held. Idle pages count as available.
    Sequence ids are the caller's. Unknown or repeated ones raise `LedgerError`.

    A model may have several cache groups, whose layers see different stretches of a sequence. A sequence then has pages in each,
    those of groups in one pool all taken from the same ids. In a group that keeps a window, pages that no token will see again
    go back, and of a long prompt only what the next steps write is covered:

        keep 6 of positions, token 13 is next:  it sees 8 .. 13, so page 0 (0 .. 3) and page 1 (4 .. 7) are not held any more

    Behind the device's pages there may be blocks of the host's memory (`tier`): pages that are evicted go there, and what a
    sequence finds there comes to pages of its own. It may not be read before `arrived`.

    Args:
        pools: one for each shape that pages have. Groups are numbered through them.
        tier: the host's blocks for the pages of each pool.
        snapshots: of what recurrent layers keep, where there are such: a prefix is found only as far as there is one of its end.

    Attributes:
        pools: those pools together.
        caches_prefixes: whether pages that nobody holds can still be found.
    """

    def __init__(
        self,
        pools: Sequence[PagePool],
        page_size: int,
        *,
        enable_prefix_caching: bool = True,
        prefixes: Prefixes | None = None,
        tier: HostTier | None = None,
        snapshots: Snapshots | None = None,
    ) -> None:
        if page_size < 1:
            raise ValueError(f"page_size must be at least 1 token, got {page_size}")
        self.page_size = page_size
        self.pools = Pools(pools)
        self._prefixes = Prefixes() if prefixes is None else prefixes
        self.caches_prefixes = enable_prefix_caching
        self.snapshots = snapshots if enable_prefix_caching else None
        self._lookup = Lookup(self.pools.groups, self._prefixes, page_size, self.snapshots)
        self._holdings: dict[int, Holding] = {}
        self._queries = 0
        self._hits = self._external_hits = 0
        self.tier = tier
        offloaded = list(self.pools)
        if self.snapshots is not None:
            self.snapshots.group = len(self.pools.groups)
            offloaded.append(self.snapshots.pool)
        if tier is not None:
            tier.stand_behind(offloaded)

    @property
    def stats(self) -> PrefixStats:
        """Prefix cache lookups and hits of admitted sequences, in tokens."""
        return PrefixStats(self._queries, self._hits, self._external_hits)

    def chain(self, salt: str | None, *, adapter: str | None = None, media: PromptMedia | None = None) -> Chain:
        """What the pages of a sequence will be known by: only sequences with an equal salt and adapter share pages."""
        return Chain(self._prefixes, salt, self.page_size, adapter=adapter, media=media)

    def add(
        self,
        sequence_id: int,
        tokens: Sequence[int],
        chain: Chain,
        *,
        max_cached: int | None = None,
        from_host: bool = True,
    ) -> int:
        """Register a sequence and let it hold the cached full pages of its prefix.

        At least one token is always left to compute, since the next token is sampled from the last one's logits.

        Args:
            sequence_id: a new id.
            tokens: all tokens known so far.
            chain: what `chain` returned for this sequence: given again after a release, it spares the hashing.
            max_cached: most tokens to take from the cache.
            from_host: also what lies in the host's blocks, for which `grow` finds pages.

        Returns:
            Number of tokens whose keys and values are already in the pages, or come there, a multiple of the page size.
        """
        if sequence_id in self._holdings:
            raise LedgerError(f"sequence {sequence_id} is registered already; release it first")
        looked_up, found, awaits = 0, 0, False
        coming: tuple[FromHost, ...] = ()
        limit = (len(tokens) - 1 if max_cached is None else min(len(tokens) - 1, max_cached)) // self.page_size
        if self.caches_prefixes:
            looked_up = len(tokens)
            found, awaits = self._lookup.find(chain, tokens, limit, from_host=from_host)
        if self.snapshots is not None:
            awaits = self.snapshots.is_expected(chain, tokens, found=found, limit=limit)
            coming = self.snapshots.add(sequence_id, chain, tokens, found=found, limit=limit)
        cached = found * self.page_size
        groups = self._lookup.take(chain, tokens, found)
        first_coming = min((min(group.coming) for group in groups if group.coming), default=found)
        holding = Holding(chain, groups, first_coming, looked_up=looked_up)
        holding.awaits = awaits
        holding.num_cached = cached
        holding.coming = coming
        if self.tier is not None:
            holding.from_tiers = sources(groups, self.page_size)
            if coming:  # the sequence would not begin behind all these tokens without its snapshot
                without, _ = self._lookup.find(chain, tokens, found, from_host=False)
                holding.from_tiers = {self.tier.source(coming[0]): cached - without * self.page_size}
        self._holdings[sequence_id] = holding
        self._announce_next(holding, tokens)
        return cached

    def absent(self, tokens: Sequence[int], chain: Chain, max_cached: int) -> list[PageName]:
        """The full pages up to `max_cached` tokens that a sequence could use and that are neither on the device nor the host."""
        limit = min(len(tokens) - 1, max_cached) // self.page_size if self.caches_prefixes else 0
        return self._lookup.absent(chain, tokens, limit)

    def load(self, tokens: Sequence[int], chain: Chain, max_cached: int, there: Collection[PageName]) -> set[PageName]:
        """Let pages come from the outer stores, as many as help a sequence where these likely are `there`; those that come."""
        coming: set[PageName] = set()
        limit = min(len(tokens) - 1, max_cached) // self.page_size
        for pool, name in self._lookup.wanted(chain, tokens, limit, there):
            assert pool.blocks is not None
            if not pool.blocks.load(name):
                break
            coming.add(name)
        return coming

    def awaits(self, sequence_id: int) -> bool:
        """Whether another sequence was about to compute this one's next page when it was added: then it pays to wait."""
        return self._held(sequence_id).awaits

    def pages_needed(
        self, sequence_id: int, num_tokens: int, *, start: int = 0, ahead: int | None = None
    ) -> tuple[int, ...]:
        """Pages of each pool that `grow` with the same arguments would take."""
        missing = self._held(sequence_id).missing(num_tokens, start=start, ahead=ahead, page_size=self.page_size)
        return tuple(missing.get(pool, 0) for pool in self.pools)

    def leaves(
        self,
        sequence_id: int,
        num_tokens: int,
        *,
        start: int = 0,
        ahead: int | None = None,
        reserve: Callable[[int], int],
    ) -> bool:
        """Whether `grow` with the same arguments would leave each pool its reserve: so many of all its pages."""
        needed = self.pages_needed(sequence_id, num_tokens, start=start, ahead=ahead)
        return all(
            pool.num_available - pages >= reserve(pool.num_pages - 1)
            for pool, pages in zip(self.pools, needed, strict=True)
        )

    def grow(self, sequence_id: int, num_tokens: int, *, start: int = 0, ahead: int | None = None) -> bool:
        """Let the sequence's pages cover positions `[0, num_tokens)`; those it did not cover before may be written.

        Args:
            sequence_id: a registered sequence.
            num_tokens: positions to cover.
            start: the next position to be computed: what groups with a window no longer see from there on goes back.
            ahead: groups with a window cover no more than so many positions from `start` on, or what they have found.

        Returns:
            False, and nothing taken, when too few pages are available in some pool.
        """
        holding = self._held(sequence_id)
        if not holding.grow(num_tokens, start=start, ahead=ahead, page_size=self.page_size):
            return False
        if holding.looked_up:
            # Counted here and not in `add`: a request that waits for pages is added again and again.
            self._queries += holding.looked_up
            external = sum(holding.from_tiers.values())
            self._hits += holding.num_cached - external
            self._external_hits += external
            holding.looked_up = 0
        return True

    def append(self, sequence_ids: Sequence[int]) -> list[Int32s] | None:
        """Let each of these have one more page behind those that it covers altogether, which `grow` does too, in more time.

        Returns:
            What `pages` says then of each. None, and nothing taken, where there are too few pages, or where one cannot simply
            have another: with windows, with positions left on its last page, with pages that are still to come.
        """
        holdings = [self._held(sequence_id) for sequence_id in sequence_ids]
        if len(self.pools.groups) > 1 or len(holdings) > self.pools[0].num_available:
            return None
        if not all(holding.is_full(self.page_size) for holding in holdings):
            return None
        return [holding.append(self.page_size) for holding in holdings]

    def shrink(self, sequence_id: int, num_tokens: int) -> bool:
        """Take back the pages behind `num_tokens` positions, which were for drafts; whether there were any.

        Nothing there may have been offered to others, nor be about to come.
        """
        holding = self._held(sequence_id)
        if holding.coming or -(-num_tokens // self.page_size) < holding.num_found:
            return False
        return holding.shrink(num_tokens, page_size=self.page_size)

    def coming(self, sequence_id: int) -> tuple[FromHost, ...]:
        """The moves that bring to a sequence's pages what was found on the host, until `arrived`."""
        return self._held(sequence_id).coming

    def seconds_to_come(self, sequence_id: int) -> float:
        """How long what was found on the host takes to the device, if it is known; 0 else."""
        return 0.0 if self.tier is None else self.tier.seconds_to_come(self._held(sequence_id))

    def from_tiers(self, sequence_id: int) -> dict[str, int]:
        """Tokens of its prefix whose pages lay behind the device, by the tier that they came from."""
        return self._held(sequence_id).from_tiers

    def arrived(self, sequence_id: int, tokens: Sequence[int]) -> None:
        """All that was to come to a sequence's pages is there with the next moves: from then on they may be read, and found."""
        holding = self._held(sequence_id)
        if self.tier is not None:
            self.tier.let_go(holding)
        if self.snapshots is not None:
            self.snapshots.arrived(sequence_id)
        self.commit(sequence_id, tokens, holding.num_cached)

    def covered(self, sequence_id: int) -> int:
        """Positions that the sequence's pages cover in every group."""
        return min([group.num_tokens for group in self._held(sequence_id).groups])

    def pages(self, sequence_id: int) -> Int32s:
        """The sequence's pages `[G, n]` in each group, in order, read-only; the sink stands for what a group does not hold.

        Ids are those of the group's pool.

        What a view shows never changes; ask again after `grow`.
        """
        return self._held(sequence_id).view

    def commit(self, sequence_id: int, tokens: Sequence[int], num_computed: int) -> None:
        """Note that positions `[0, num_computed)` are in the cache, and let others find the full pages among them.

        They may be computed by a step that is only just launched: what finds them runs after it.

        When two sequences computed the same page, the first stays in the index. Work is proportional to the new pages.

        Args:
            sequence_id: a registered sequence.
            tokens: its tokens, at least `num_computed` of them.
            num_computed: number of positions whose keys and values are written.
        """
        holding = self._held(sequence_id)
        full = num_computed // self.page_size
        if not self.caches_prefixes or full <= holding.num_found:
            return
        covered = min([group.num_tokens for group in holding.groups])
        if num_computed > covered or num_computed > len(tokens):
            raise LedgerError(
                f"sequence {sequence_id} cannot have computed {num_computed} tokens: "
                f"its pages cover {covered} and {len(tokens)} are known"
            )
        for number in range(holding.num_found, full):
            entry = holding.chain.entry(number, tokens)
            for group, pages in enumerate(holding.groups):
                if number >= pages.num_dropped:
                    pages.pool.index.insert(entry, group, pages.ids[number])
                    if pages.pool.blocks is not None:
                        pages.pool.blocks.offer(pages.ids[number], entry, group)
        if self.snapshots is not None:
            self.snapshots.commit(sequence_id, tokens, before=holding.num_found, pages=full)
        holding.num_found = full
        self._announce_next(holding, tokens)

    def release(self, sequence_id: int) -> None:
        """Forget a sequence. Pages that nobody else holds become idle when they can be found, else free."""
        holding = self._held(sequence_id)
        del self._holdings[sequence_id]
        self._withdraw(holding)
        if self.tier is not None:
            self.tier.let_go(holding)
        if self.snapshots is not None:
            self.snapshots.release(sequence_id)
        # Deepest first: the longest-idle page is evicted first, and a chain is useless without its beginning.
        for number in reversed(range(max(len(group.ids) for group in holding.groups))):
            for group in holding.groups:
                if group.num_dropped <= number < len(group.ids) and number not in group.coming:
                    group.pool.drop(group.ids[number])

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes.

        Returns:
            False, and nothing changed, while any sequence is registered: it would go on publishing pages that were
            computed before the reset.
        """
        if self._holdings:
            return False
        for pool in self.pools:
            pool.forget_idle()
        if self.tier is not None:
            self.tier.forget()
        if self.snapshots is not None:
            self.snapshots.forget()
        return True

    def check(self) -> None:
        """Prove that the accounts are right, as `host/kvcache/proofs.py` has it.

        Raises:
            LedgerError: they are not; the message names the pages.
        """
        for number, pool in enumerate(self.pools):
            check_pool(number, pool, self._holdings.values())
        if self.snapshots is not None:
            check_held("snapshots", self.snapshots.pool, Counter(self.snapshots.check(self._holdings)))
        check_holdings(self._holdings, page_size=self.page_size)
        check_announced(self._prefixes, self._holdings.values())
        if self.tier is not None:
            self.tier.check(self._holdings.values())

    def _announce_next(self, holding: Holding, tokens: Sequence[int]) -> None:
        """Let others know of the page that the sequence computes next, if all its tokens are known."""
        self._withdraw(holding)
        waits_for_pages = self.caches_prefixes and self.snapshots is None
        if waits_for_pages and (holding.num_found + 1) * self.page_size <= len(tokens):
            holding.announced = holding.chain.entry(holding.num_found, tokens).digest
            self._prefixes.announce(holding.announced)

    def _withdraw(self, holding: Holding) -> None:
        if holding.announced is not None:
            self._prefixes.withdraw(holding.announced)
            holding.announced = None

    def _held(self, sequence_id: int) -> Holding:
        try:
            return self._holdings[sequence_id]
        except KeyError:
            raise LedgerError(f"sequence {sequence_id} is not registered; add it first") from None
