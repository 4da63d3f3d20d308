"""Pages of one shape and what becomes of them: taken, shared, found again, given back."""

from __future__ import annotations

from collections.abc import Sequence

from jaxengine.contract.windows import longest_sequence, pages_held, tokens_held
from jaxengine.host.kvcache.host_blocks import HostBlocks
from jaxengine.host.kvcache.pages import Pages
from jaxengine.host.kvcache.prefix import PrefixIndex

UNBOUNDED = 1 << 40
"""Tokens, more than there ever are: of a sequence that takes no more pages however long it gets."""


class PagePool:
    """The pages of those cache groups whose pages have one shape. Its ids are its own: other pools have the same ones.

    A page is free, idle (nobody holds it, its content can still be found) or held.

    Args:
        num_pages: all pages, the sink included.
        keeps: of each cache group, how many positions back a token sees, itself included; None is all.

    Attributes:
        blocks: where the content of pages goes that are evicted; None: it is forgotten.
    """

    def __init__(self, num_pages: int, keeps: Sequence[int | None] = (None,)) -> None:
        self.keeps = tuple(keeps)
        self.pages = Pages(num_pages)
        self.index = PrefixIndex()
        self.blocks: HostBlocks | None = None

    @property
    def num_pages(self) -> int:
        """All pages, the sink included."""
        return self.pages.num_pages

    @property
    def num_available(self) -> int:
        """Pages that can be handed out: free ones, and idle ones after eviction."""
        return self.pages.num_free + self.index.num_idle

    @property
    def num_held(self) -> int:
        """Pages that sequences hold."""
        return self.num_pages - 1 - self.num_available

    @property
    def usage(self) -> float:
        """Share of the pages that sequences hold, 0 to 1."""
        return self.num_held / (self.num_pages - 1)

    def longest_sequence(self, *, page_size: int, ahead: int) -> int:
        """Tokens of the longest sequence that all pages hold, if no step writes more than `ahead` of them."""
        pages, keeps = self.num_pages - 1, self.keeps
        if all(keep is None for keep in keeps):
            return pages // len(keeps) * page_size
        if None not in keeps and pages_held(keeps, UNBOUNDED, page_size=page_size, ahead=ahead) <= pages:
            return UNBOUNDED
        return longest_sequence(keeps, pages, page_size=page_size, ahead=ahead, most=pages * page_size)

    def tokens_held(self, *, page_size: int, ahead: int, max_model_len: int) -> int:
        """Tokens of all the sequences of `max_model_len` that the pages hold together."""
        pages = self.num_pages - 1
        return tokens_held(self.keeps, pages, page_size=page_size, ahead=ahead, max_model_len=max_model_len)

    def take(self) -> int:
        """Hand out a page to one holder. At least one must be available."""
        if not self.pages.num_free:
            if self.blocks is None:
                self.pages.free(self.index.evict())
            else:
                self._make_room(self.blocks)
        return self.pages.take()

    def _make_room(self, blocks: HostBlocks) -> None:
        """Let the longest idle pages go to the host: as many as one launch takes, if that is no more than an eighth of them."""
        for _ in range(max(1, min(blocks.together, self.index.num_idle // 8))):
            page, group, entry = self.index.next_evicted()
            blocks.leave(page, entry, group)
            self.pages.free(self.index.evict())

    def share(self, page: int) -> None:
        """Count one more holder of a page that is held, or idle and was found."""
        self.index.wake(page)
        self.pages.share(page)

    def drop(self, page: int) -> None:
        """Count one holder less. A page without any is idle when it can be found, else free."""
        if not self.pages.drop(page):
            return
        if page in self.index:
            self.index.rest(page)
        else:
            self.pages.free(page)

    def forget_idle(self) -> None:
        """Free all pages that nobody holds."""
        while self.index.num_idle:
            self.pages.free(self.index.evict())
