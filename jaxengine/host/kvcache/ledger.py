"""The accounts of the KV cache: which sequence holds which pages. The only door to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jaxengine.contract.windows import first_page_seen
from jaxengine.host.kvcache.holding import GroupPages, Holding, Int32s
from jaxengine.host.kvcache.pages import SINK, LedgerError
from jaxengine.host.kvcache.pool import PagePool
from jaxengine.host.kvcache.prefix import Chain, Prefixes
from jaxengine.host.kvcache.proofs import check_announced, check_holdings, check_pool


@dataclass(frozen=True, slots=True)
class PrefixStats:
    """Tokens looked up in the prefix cache, and tokens found there, since the ledger was made."""

    queries: int
    hits: int


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

    Args:
        pools: one for each shape that pages have. Groups are numbered through them.
    """

    def __init__(
        self,
        pools: Sequence[PagePool],
        page_size: int,
        *,
        enable_prefix_caching: bool = True,
        prefixes: Prefixes | None = None,
    ) -> None:
        if page_size < 1:
            raise ValueError(f"page_size must be at least 1 token, got {page_size}")
        self.page_size = page_size
        self._pools = tuple(pools)
        self._groups = tuple((pool, keep) for pool in self._pools for keep in pool.keeps)
        self._prefixes = Prefixes() if prefixes is None else prefixes
        self._caching = enable_prefix_caching
        self._holdings: dict[int, Holding] = {}
        self._queries = 0
        self._hits = 0

    @property
    def num_pages(self) -> int:
        """All pages of all pools, the sinks included."""
        return sum(pool.num_pages for pool in self._pools)

    @property
    def num_available(self) -> tuple[int, ...]:
        """Pages of each pool that can be handed out: free ones, and idle ones after eviction."""
        return tuple(pool.num_available for pool in self._pools)

    def longest_sequence(self, *, ahead: int) -> int:
        """Tokens of the longest sequence that every pool holds, if no step writes more than `ahead` of them."""
        return min(pool.longest_sequence(page_size=self.page_size, ahead=ahead) for pool in self._pools)

    def tokens_held(self, *, ahead: int, max_model_len: int) -> int:
        """Tokens of all the sequences of `max_model_len` that every pool holds together."""
        size = self.page_size
        return min(pool.tokens_held(page_size=size, ahead=ahead, max_model_len=max_model_len) for pool in self._pools)

    @property
    def usage(self) -> float:
        """Share of the pages that sequences hold in the fullest pool, 0 to 1."""
        return max(pool.usage for pool in self._pools)

    @property
    def stats(self) -> PrefixStats:
        """Prefix cache lookups and hits of admitted sequences, in tokens."""
        return PrefixStats(self._queries, self._hits)

    def chain(self, salt: str | None) -> Chain:
        """What the pages of a sequence will be known by: only sequences with an equal salt share pages."""
        return Chain(self._prefixes, salt, self.page_size)

    def add(
        self,
        sequence_id: int,
        tokens: Sequence[int],
        chain: Chain,
        *,
        max_cached: int | None = None,
    ) -> int:
        """Register a sequence and let it hold the cached full pages of its prefix.

        At least one token is always left to compute, since the next token is sampled from the last one's logits.

        Args:
            sequence_id: a new id.
            tokens: all tokens known so far.
            chain: what `chain` returned for this sequence: given again after a release, it spares the hashing.
            max_cached: most tokens to take from the cache.

        Returns:
            Number of tokens whose keys and values are already in the pages, a multiple of the page size.
        """
        if sequence_id in self._holdings:
            raise LedgerError(f"sequence {sequence_id} is registered already; release it first")
        looked_up, found, awaits = 0, 0, False
        if self._caching:
            looked_up = len(tokens)
            limit = len(tokens) - 1 if max_cached is None else min(len(tokens) - 1, max_cached)
            found, awaits = self._find(chain, tokens, limit // self.page_size)
        cached = found * self.page_size
        groups = tuple(self._take_found(number, chain, tokens, found) for number in range(len(self._groups)))
        holding = Holding(chain, groups, found, looked_up=looked_up)
        holding.awaits = awaits
        self._holdings[sequence_id] = holding
        self._announce_next(holding, tokens)
        return cached

    def _find(self, chain: Chain, tokens: Sequence[int], limit: int) -> tuple[int, bool]:
        """The most pages, up to `limit`, from which every group can go on; whether somebody is about to compute the next one.

        A group that sees everything needs all of them, one with a window those that the next token sees.
        """
        announced_by_others, size = self._prefixes.announced, self.page_size
        runs = [0] * len(self._groups)
        best, announced = 0, False
        for number in range(limit):
            entry = chain.entry(number, tokens)
            for group, (pool, keep) in enumerate(self._groups):
                if pool.index.find(entry, group) is not None:
                    runs[group] += 1
                elif keep is None:
                    return best, entry.digest in announced_by_others
                else:
                    runs[group] = 0
            position = (number + 1) * size
            if all(
                run > number - first_page_seen(keep, position, page_size=size)
                for run, (_, keep) in zip(runs, self._groups, strict=True)
            ):
                best = number + 1
            elif best == number:
                announced = entry.digest in announced_by_others
        return best, announced

    def _take_found(self, group: int, chain: Chain, tokens: Sequence[int], found: int) -> GroupPages:
        """Let a sequence hold what it needs of the first `found` pages of a group."""
        pool, keep = self._groups[group]
        pages = GroupPages(pool, keep, [SINK] * found, found * self.page_size)
        pages.num_dropped = min(found, pages.first_seen(pages.num_tokens, self.page_size))
        for number in range(pages.num_dropped, found):
            page = pool.index.find(chain.entry(number, tokens), group)
            assert page is not None
            pool.share(page)
            pages.ids[number] = page
        return pages

    def awaits(self, sequence_id: int) -> bool:
        """Whether another sequence was about to compute this one's next page when it was added: then it pays to wait."""
        return self._held(sequence_id).awaits

    def pages_needed(
        self, sequence_id: int, num_tokens: int, *, start: int = 0, ahead: int | None = None
    ) -> tuple[int, ...]:
        """Pages of each pool that `grow` with the same arguments would take."""
        groups, size = self._held(sequence_id).groups, self.page_size
        missing = [(group.pool, group.missing(group.end(num_tokens, start, ahead), size)) for group in groups]
        return tuple(sum(pages for of, pages in missing if of is pool) for pool in self._pools)

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
            for pool, pages in zip(self._pools, needed, strict=True)
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
        groups = holding.groups
        if len(groups) == 1 and groups[0].keep is None:
            group = groups[0]
            missing = group.missing(num_tokens, self.page_size)
            if missing > group.pool.num_available:
                return False
            if missing:
                holding.append([group.pool.take() for _ in range(missing)])
            group.num_tokens = max(group.num_tokens, num_tokens)
        else:
            for group in groups:
                group.drop_unseen(start, self.page_size)
            ends = tuple(group.end(num_tokens, start, ahead) for group in groups)
            if not self._can_extend(groups, ends):
                holding.rebuild()
                return False
            for group, end in zip(groups, ends, strict=True):
                group.ids.extend(group.pool.take() for _ in range(group.missing(end, self.page_size)))
                group.num_tokens = max(group.num_tokens, end)
            holding.rebuild()
        if holding.looked_up:
            # Counted here and not in `add`: a request that waits for pages is added again and again.
            self._queries += holding.looked_up
            self._hits += holding.num_found * self.page_size
            holding.looked_up = 0
        return True

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
        if not self._caching or full <= holding.num_found:
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
        holding.num_found = full
        self._announce_next(holding, tokens)

    def release(self, sequence_id: int) -> None:
        """Forget a sequence. Pages that nobody else holds become idle when they can be found, else free."""
        holding = self._held(sequence_id)
        del self._holdings[sequence_id]
        self._withdraw(holding)
        # Deepest first: the longest-idle page is evicted first, and a chain is useless without its beginning.
        for number in reversed(range(max(len(group.ids) for group in holding.groups))):
            for group in holding.groups:
                if group.num_dropped <= number < len(group.ids):
                    group.pool.drop(group.ids[number])

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes.

        Returns:
            False, and nothing changed, while any sequence is registered: it would go on publishing pages that were
            computed before the reset.
        """
        if self._holdings:
            return False
        for pool in self._pools:
            pool.forget_idle()
        return True

    def check(self) -> None:
        """Prove that the accounts are right, as `host/kvcache/proofs.py` has it.

        Raises:
            LedgerError: they are not; the message names the pages.
        """
        for number, pool in enumerate(self._pools):
            check_pool(number, pool, self._holdings.values())
        check_holdings(self._holdings, page_size=self.page_size)
        check_announced(self._prefixes, self._holdings.values())

    def _announce_next(self, holding: Holding, tokens: Sequence[int]) -> None:
        """Let others know of the page that the sequence computes next, if all its tokens are known."""
        self._withdraw(holding)
        if self._caching and (holding.num_found + 1) * self.page_size <= len(tokens):
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

    def _can_extend(self, groups: Sequence[GroupPages], ends: Sequence[int]) -> bool:
        for pool in self._pools:
            missing = (
                group.missing(end, self.page_size)
                for group, end in zip(groups, ends, strict=True)
                if group.pool is pool
            )
            if sum(missing) > pool.num_available:
                return False
        return True
