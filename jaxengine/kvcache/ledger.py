"""The accounts of the KV cache: which sequence holds which pages. The only door to them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from jaxengine.kvcache.holding import Holding, Int32s
from jaxengine.kvcache.pages import SINK, LedgerError, Pages
from jaxengine.kvcache.prefix import Chain, PrefixIndex


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

    After `fork(parent, child, 9)` both hold 7, 2 and 9. Whoever grows first writes into page 9, so it gets a fresh page in its
    place and a copy `(9, fresh)` is queued; the other keeps page 9 for itself.

    A page is free, idle (nobody holds it, its content can still be found) or held. Idle pages count as available.
    Sequence ids are the caller's. Unknown or repeated ones raise `LedgerError`.
    """

    def __init__(
        self, num_pages: int, page_size: int, *, enable_prefix_caching: bool = True, index: PrefixIndex | None = None
    ) -> None:
        if page_size < 1:
            raise ValueError(f"page_size must be at least 1 token, got {page_size}")
        self.page_size = page_size
        self._pages = Pages(num_pages)
        self._index = PrefixIndex() if index is None else index
        self._caching = enable_prefix_caching
        self._holdings: dict[int, Holding] = {}
        self._copies: dict[int, int] = {}
        # Free pages that a queued copy still reads: no copy may go there, new tokens may (they are written after copies).
        self._parked: set[int] = set()
        self._queries = 0
        self._hits = 0

    @property
    def num_pages(self) -> int:
        """All pages, the sink included."""
        return self._pages.num_pages

    @property
    def num_available(self) -> int:
        """Pages that can be handed out: free ones, and idle ones after eviction."""
        return self._num_copy_targets + len(self._parked)

    @property
    def _num_copy_targets(self) -> int:
        return self._pages.num_free + self._index.num_idle

    @property
    def usage(self) -> float:
        """Share of the pages that sequences hold, 0 to 1."""
        usable = self.num_pages - 1
        return (usable - self.num_available) / usable

    @property
    def stats(self) -> PrefixStats:
        """Prefix cache lookups and hits of admitted sequences, in tokens."""
        return PrefixStats(self._queries, self._hits)

    def chain(self, salt: str | None) -> Chain:
        """What the pages of a sequence will be known by."""
        return Chain(self._index, salt, self.page_size)

    def add(
        self,
        sequence_id: int,
        tokens: Sequence[int],
        *,
        salt: str | None = None,
        chain: Chain | None = None,
        max_cached: int | None = None,
        align: int = 1,
    ) -> int:
        """Register a sequence and let it hold the cached full pages of its prefix.

        At least one token is always left to compute, since the next token is sampled from the last one's logits.

        Args:
            sequence_id: a new id.
            tokens: all tokens known so far.
            salt: only sequences with an equal salt share pages.
            chain: what `chain(salt)` returned for this sequence: given again after a release, it spares the hashing.
            max_cached: most tokens to take from the cache.
            align: the result is a multiple of this many tokens.

        Returns:
            Number of tokens whose keys and values are already in the pages, a multiple of the page size.
        """
        if sequence_id in self._holdings:
            raise LedgerError(f"sequence {sequence_id} is registered already; release it first")
        size, index = self.page_size, self._index
        chain = chain or self.chain(salt)
        ids: list[int] = []
        looked_up = 0
        awaits = False
        if self._caching:
            looked_up = len(tokens)
            limit = len(tokens) - 1 if max_cached is None else min(len(tokens) - 1, max_cached)
            for number in range(limit // size):
                entry = chain.entry(number, tokens)
                page = index.find(entry)
                if page is None:
                    awaits = entry.digest in index.announced
                    break
                ids.append(page)
            while len(ids) * size % align:
                ids.pop()
        for page in ids:
            index.wake(page)
            self._pages.share(page)
        cached = len(ids) * size
        holding = Holding(chain, ids, cached, len(ids), looked_up=looked_up)
        holding.awaits = awaits
        self._holdings[sequence_id] = holding
        self._announce_next(holding, tokens)
        return cached

    def awaits(self, sequence_id: int) -> bool:
        """Whether another sequence was about to compute this one's next page when it was added: then it pays to wait."""
        return self._held(sequence_id).awaits

    def pages_needed(self, sequence_id: int, num_tokens: int) -> int:
        """Pages that `grow(sequence_id, num_tokens)` would take, a copy on write included."""
        return self._missing(self._held(sequence_id), num_tokens)

    def grow(self, sequence_id: int, num_tokens: int) -> bool:
        """Let the sequence's pages cover positions `[0, num_tokens)`; those it did not cover before may be written.

        When the next position falls into a page that others hold, a fresh page takes its place and a copy is queued (see
        `take_copies`).

        Returns:
            False, and nothing changed, when too few pages are available.
        """
        holding = self._held(sequence_id)
        if num_tokens <= holding.num_tokens:
            return True
        if holding.num_tokens % self.page_size or num_tokens > len(holding.ids) * self.page_size:
            if not self._can_extend(holding, num_tokens):
                return False
            self._make_tail_private(holding)
            self._extend(holding, num_tokens)
        holding.num_tokens = num_tokens
        if holding.looked_up:
            # Counted here and not in `add`: a request that waits for pages is added again and again.
            self._queries += holding.looked_up
            self._hits += holding.num_found * self.page_size
            holding.looked_up = 0
        return True

    def take_copies(self) -> tuple[tuple[int, int], ...]:
        """The `(source, destination)` pages to copy before the next step writes anything; they are queued no longer.

        No page is a destination twice, or both a source and a destination, so their order does not matter.
        """
        copies = tuple((source, destination) for destination, source in self._copies.items())
        self._copies.clear()
        while self._parked:
            self._pages.free(self._parked.pop())
        return copies

    def fork(self, parent_id: int, child_id: int, num_tokens: int) -> None:
        """Register a child that shares the parent's pages of positions `[0, num_tokens)`, which have been computed."""
        parent = self._held(parent_id)
        if child_id in self._holdings:
            raise LedgerError(f"sequence {child_id} is registered already; release it first")
        if num_tokens > parent.num_tokens:
            raise LedgerError(
                f"cannot fork {num_tokens} tokens of sequence {parent_id}, which covers {parent.num_tokens}"
            )
        ids = parent.ids[: -(-num_tokens // self.page_size)]
        for page in ids:
            self._pages.share(page)
        found = min(parent.num_found, num_tokens // self.page_size)
        self._holdings[child_id] = Holding(parent.chain.first(found), ids, num_tokens, found)

    def pages(self, sequence_id: int) -> Int32s:
        """The sequence's pages in order, read-only. What a view shows never changes; ask again after `grow`."""
        return self._held(sequence_id).view

    def commit(self, sequence_id: int, tokens: Sequence[int], num_computed: int, *, publish: bool = True) -> None:
        """Note that positions `[0, num_computed)` are in the cache; `publish` lets others find the full pages among them.

        They may be computed by a step that is only just launched: what finds them runs after it.

        When two sequences computed the same page, the first stays in the index. Work is proportional to the new pages.

        Args:
            sequence_id: a registered sequence.
            tokens: its tokens, at least `num_computed` of them.
            num_computed: number of positions whose keys and values are written.
            publish: False keeps the pages private (a later call that publishes includes them).
        """
        holding = self._held(sequence_id)
        full = num_computed // self.page_size
        if not publish or not self._caching or full <= holding.num_found:
            return
        if num_computed > min(holding.num_tokens, len(tokens)):
            raise LedgerError(
                f"sequence {sequence_id} cannot have computed {num_computed} tokens: "
                f"its pages cover {holding.num_tokens} and {len(tokens)} are known"
            )
        for number in range(holding.num_found, full):
            self._index.insert(holding.chain.entry(number, tokens), holding.ids[number])
        holding.num_found = full
        self._announce_next(holding, tokens)

    def release(self, sequence_id: int) -> None:
        """Forget a sequence. Pages that nobody else holds become idle when they can be found, else free."""
        holding = self._held(sequence_id)
        del self._holdings[sequence_id]
        self._withdraw(holding)
        # Deepest first: the longest-idle page is evicted first, and a chain is useless without its beginning.
        for page in reversed(holding.ids):
            self._drop(page)

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes.

        Returns:
            False, and nothing changed, while any sequence is registered: it would go on publishing pages that were
            computed before the reset.
        """
        if self._holdings:
            return False
        while self._index.num_idle:
            self._pages.free(self._index.evict())
        return True

    def check(self) -> None:
        """Prove that free, idle and held pages are all pages, each once, and that counts equal holders.

        Raises:
            LedgerError: they are not; the message names the pages.
        """
        free, idle, parked = self._pages.free_pages(), self._index.idle_pages(), self._parked
        holders = Counter(page for holding in self._holdings.values() for page in holding.ids)
        states = Counter([*free, *idle, *parked, *holders])
        if SINK in states:
            raise LedgerError(f"the sink, page {SINK}, was handed out")
        if twice := [page for page, count in states.items() if count > 1]:
            raise LedgerError(f"pages {sorted(twice)} are more than one of free, idle, parked and held")
        if lost := set(range(1, self.num_pages)) - states.keys():
            raise LedgerError(f"pages {sorted(lost)} are neither free, idle, parked nor held")
        for page, count in enumerate(self._pages.references):
            if count != holders[page]:
                raise LedgerError(f"page {page} counts {count} holders and has {holders[page]}")
        if stray := {page for page in free | parked if page in self._index}:
            raise LedgerError(f"free pages {sorted(stray)} can still be found by their content")
        for sequence_id, holding in self._holdings.items():
            fitting = len(holding.ids) == -(-holding.num_tokens // self.page_size)
            if not fitting or len(set(holding.ids)) != len(holding.ids):
                raise LedgerError(f"sequence {sequence_id} covers {holding.num_tokens} tokens with pages {holding.ids}")
            if holding.view.tolist() != holding.ids:
                raise LedgerError(f"sequence {sequence_id} shows pages {holding.view.tolist()}, holds {holding.ids}")
        if self._index.announced != Counter(held.announced for held in self._holdings.values() if held.announced):
            raise LedgerError("announced pages are not those that sequences are about to compute")
        if stray := self._copies.keys() - holders.keys():
            raise LedgerError(f"copies are queued to pages {sorted(stray)}, which nobody holds")
        if both := self._copies.keys() & set(self._copies.values()):
            raise LedgerError(f"pages {sorted(both)} are a source and a destination of queued copies")

    def _announce_next(self, holding: Holding, tokens: Sequence[int]) -> None:
        """Let others know of the page that the sequence computes next, if all its tokens are known."""
        self._withdraw(holding)
        if self._caching and (holding.num_found + 1) * self.page_size <= len(tokens):
            holding.announced = holding.chain.entry(holding.num_found, tokens).digest
            self._index.announce(holding.announced)

    def _withdraw(self, holding: Holding) -> None:
        if holding.announced is not None:
            self._index.withdraw(holding.announced)
            holding.announced = None

    def _held(self, sequence_id: int) -> Holding:
        try:
            return self._holdings[sequence_id]
        except KeyError:
            raise LedgerError(f"sequence {sequence_id} is not registered; add or fork it first") from None

    def _missing(self, holding: Holding, num_tokens: int) -> int:
        if num_tokens <= holding.num_tokens:
            return 0
        return -(-num_tokens // self.page_size) - len(holding.ids) + self._tail_is_shared(holding)

    def _can_extend(self, holding: Holding, num_tokens: int) -> bool:
        if self._tail_is_shared(holding) and not self._num_copy_targets:
            return False
        return self._missing(holding, num_tokens) <= self.num_available

    def _tail_is_shared(self, holding: Holding) -> bool:
        """Whether the next position falls into a half-filled page that others hold."""
        return holding.num_tokens % self.page_size != 0 and self._pages.references[holding.ids[-1]] > 1

    def _make_tail_private(self, holding: Holding) -> None:
        if holding.num_tokens % self.page_size == 0:
            return
        tail = holding.ids[-1]
        if self._pages.references[tail] > 1:
            fresh = self._take()
            # A copy of a page that is itself still to be copied reads the first source.
            self._copies[fresh] = self._copies.get(tail, tail)
            holding.replace_tail(fresh)
            self._drop(tail)
        elif tail in self._index:
            # After a fork the parent filled and published this page, and was then released: its end is about to change.
            self._index.forget(tail)

    def _extend(self, holding: Holding, num_tokens: int) -> None:
        missing = -(-num_tokens // self.page_size) - len(holding.ids)
        if missing:
            holding.append(self._take() for _ in range(missing))

    def _take(self) -> int:
        if not self._pages.num_free:
            self._pages.free(self._index.evict() if self._index.num_idle else self._parked.pop())
        return self._pages.take()

    def _drop(self, page: int) -> None:
        if not self._pages.drop(page):
            return
        if self._copies:
            self._copies.pop(page, None)
            if page in self._copies.values():
                self._park(page)
                return
        if page in self._index:
            self._index.rest(page)
        else:
            self._pages.free(page)

    def _park(self, page: int) -> None:
        if page in self._index:
            self._index.forget(page)
        self._parked.add(page)
