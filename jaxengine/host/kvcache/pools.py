"""All pools of an engine's pages together: how much they hold, and how much of it is in use."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from jaxengine.host.kvcache.pool import PagePool


class Pools:
    """One pool for each shape that pages have. Which sequence has which pages is the ledger's.

    Attributes:
        groups: the pool of each cache group, and how many positions back its layers see; None is all.
    """

    def __init__(self, pools: Sequence[PagePool]) -> None:
        self._pools = tuple(pools)
        self.groups = tuple((pool, keep) for pool in self._pools for keep in pool.keeps)

    def __iter__(self) -> Iterator[PagePool]:
        return iter(self._pools)

    def __len__(self) -> int:
        return len(self._pools)

    def __getitem__(self, number: int) -> PagePool:
        return self._pools[number]

    @property
    def num_pages(self) -> int:
        """All pages of all pools, the sinks included."""
        return sum(pool.num_pages for pool in self._pools)

    @property
    def num_available(self) -> tuple[int, ...]:
        """Pages of each pool that can be handed out: free ones, and idle ones after eviction."""
        return tuple(pool.num_available for pool in self._pools)

    @property
    def num_held(self) -> int:
        """Pages that sequences hold."""
        return sum(pool.num_held for pool in self._pools)

    @property
    def num_idle(self) -> int:
        """Pages that nobody holds and whose content can still be found."""
        return sum(pool.index.num_idle for pool in self._pools)

    @property
    def num_free(self) -> int:
        """Pages that hold nothing."""
        return sum(pool.pages.num_free for pool in self._pools)

    @property
    def usage(self) -> float:
        """Share of the pages that sequences hold in the fullest pool, 0 to 1."""
        return max(pool.usage for pool in self._pools)

    def longest_sequence(self, *, page_size: int, ahead: int) -> int:
        """Tokens of the longest sequence that every pool holds, if no step writes more than `ahead` of them."""
        return min(pool.longest_sequence(page_size=page_size, ahead=ahead) for pool in self._pools)

    def tokens_held(self, *, page_size: int, ahead: int, max_model_len: int) -> int:
        """Tokens of all the sequences of `max_model_len` that every pool holds together."""
        return min(
            pool.tokens_held(page_size=page_size, ahead=ahead, max_model_len=max_model_len) for pool in self._pools
        )
