"""Page ids and how many sequences hold each of them."""

from __future__ import annotations

SINK = 0
"""The page that padding writes go to. It is never handed out and nothing reads it."""


class LedgerError(AssertionError):
    """The page accounts are wrong, or a caller broke their contract: a bug of the engine, never of a request."""


class Pages:
    """Ids `1 .. num_pages - 1`, each free, idle (nobody holds it, its content is still indexed) or held.

             take              share, drop
      free ---------> held by 1 <---------> held by n
       ^                |
       | free           | drop to 0: the caller frees it, or leaves it idle for the prefix index
       +----------------+

    Freed pages are handed out again last in, first out: a small working set stays small.
    """

    def __init__(self, num_pages: int) -> None:
        if num_pages < 2:
            raise ValueError(f"a page pool needs the sink and at least one page to hand out, got num_pages={num_pages}")
        self.num_pages = num_pages
        self.references = [0] * num_pages
        self._free = list(range(num_pages - 1, SINK, -1))

    @property
    def num_free(self) -> int:
        return len(self._free)

    def take(self) -> int:
        """Hand out a free page to one holder. At least one must be free."""
        page = self._free.pop()
        self.references[page] = 1
        return page

    def share(self, page: int) -> None:
        """Count one more holder of a page that is held or idle."""
        self.references[page] += 1

    def drop(self, page: int) -> bool:
        """Count one holder less; return whether none is left."""
        left = self.references[page] - 1
        self.references[page] = left
        return left == 0

    def free(self, page: int) -> None:
        """Make a page that nobody holds available again."""
        self._free.append(page)

    def free_pages(self) -> set[int]:
        """The free ids, for `Ledger.check`.

        Raises:
            LedgerError: a page is free twice.
        """
        free = set(self._free)
        if len(free) != len(self._free):
            twice = sorted(page for page in free if self._free.count(page) > 1)
            raise LedgerError(f"pages {twice} are in the free list more than once")
        return free
