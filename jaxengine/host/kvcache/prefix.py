"""Which page holds which prefix: content hash to page, and the order in which idle pages are given up."""

from __future__ import annotations

import hashlib
import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from jaxengine.contract.media import PromptMedia
from jaxengine.contract.media_content import MediaContent
from jaxengine.host.kvcache.pages import LedgerError

Digest = bytes
Hash = Callable[[bytes], Digest]


class Entry(NamedTuple):
    """What an indexed page holds: the tokens of one full page, after everything that `parent` stands for.

    Behind the bytes of the tokens stands what is shown at their places.
    """

    digest: Digest
    parent: Digest
    tokens: bytes


def keyed_hash(secret: bytes | None = None) -> Hash:
    """A 256-bit hash under a secret, by default one drawn now: who does not know it can neither make nor recognise a digest.

    Engines that find each other's pages have the same (up to 64 bytes).
    """
    keyed = hashlib.blake2b(key=secrets.token_bytes(32) if secret is None else secret, digest_size=32)

    def digest(data: bytes) -> Digest:
        state = keyed.copy()  # a quarter of the time that it takes to begin with the key again
        state.update(data)
        return state.digest()

    return digest


class Chain:
    """The entries of the full pages of one sequence, in order: made when they are first asked for, and kept."""

    def __init__(
        self,
        prefixes: Prefixes,
        salt: str | None,
        page_size: int,
        *,
        adapter: str | None = None,
        media: PromptMedia | None = None,
    ) -> None:
        self._media = None if media is None else MediaContent(media)
        self.root = prefixes.root(salt, adapter=adapter, read=b"" if self._media is None else self._media.read)
        self._prefixes = prefixes
        self._page_size = page_size
        self._entries: list[Entry] = []

    def entry(self, number: int, tokens: Sequence[int]) -> Entry:
        """Page `number` of a sequence with these tokens, which only ever grow from call to call."""
        entries, size = self._entries, self._page_size
        while len(entries) <= number:
            parent = entries[-1].digest if entries else self.root
            start, end = len(entries) * size, (len(entries) + 1) * size
            shown = b"" if self._media is None else self._media.between(start, end)
            entries.append(self._prefixes.entry(parent, tokens[start:end], shown))
        return entries[number]


class Prefixes:
    """What full pages are known by, a chained content hash, and which of them sequences are about to compute.

    A page's digest covers its tokens, the digest of the page before it, and so every token, the salt and the adapter. Where items
    are shown at its places it covers them too, and the root covers those that cross attention reads:

        root   = hash(adapter + salt + items that are read)
        page 0 = hash(root   + tokens[0:T]  + items at places 0 to T)
        page 1 = hash(page 0 + tokens[T:2T] + items at places T to 2T)

    Keys and values depend on exactly that content, so equal digests mean equal pages.

    `announced` counts, by digest, the sequences that are about to compute a page with this content.
    """

    def __init__(self, *, hash: Hash | None = None) -> None:
        self._hash = hash or keyed_hash()
        self.announced: Counter[Digest] = Counter()

    def announce(self, digest: Digest) -> None:
        """A sequence is about to compute this page."""
        self.announced[digest] += 1

    def withdraw(self, digest: Digest) -> None:
        """It has, or it will not."""
        self.announced[digest] -= 1
        if not self.announced[digest]:
            del self.announced[digest]

    def root(self, salt: str | None, *, adapter: str | None = None, read: bytes = b"") -> Digest:
        """The digest before the first page. No salt and an empty one are different salts; `adapter` is a digest too, and `read`
        are the items that cross attention reads."""
        with_adapter = b"" if adapter is None else b"\x02" + adapter.encode("ascii") + b"\x00"
        return self._hash(
            read + with_adapter + (b"\x00" if salt is None else b"\x01" + salt.encode("utf-8", "surrogatepass"))
        )

    def entry(self, parent: Digest, tokens: Sequence[int], shown: bytes = b"") -> Entry:
        """Describe the full page with `tokens` that follows `parent`, and what is `shown` at its places."""
        content = np.asarray(tokens, np.int32).tobytes() + shown
        return Entry(self._hash(parent + content), parent, content)


class PrefixIndex:
    """Which pages of a pool hold what, by cache group and digest.

    A match still compares the stored tokens and parent: two prompts that collide could otherwise read each other.

    Pages that nobody holds stay indexed, *idle*, until they are needed: `evict` gives up the one idle for longest.
    """

    def __init__(self) -> None:
        self._pages: dict[tuple[int, Digest], int] = {}
        self._entries: dict[int, tuple[int, Entry]] = {}
        # A dict is a queue here: insertion order is the order of eviction.
        self._idle: dict[int, None] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, page: int) -> bool:
        return page in self._entries

    @property
    def num_idle(self) -> int:
        return len(self._idle)

    def find(self, entry: Entry, group: int = 0) -> int | None:
        """The page of a cache group that holds exactly this content, held or idle; None when there is none."""
        page = self._pages.get((group, entry.digest))
        return page if page is not None and self._entries[page][1] == entry else None

    def insert(self, entry: Entry, group: int, page: int) -> bool:
        """Index a held page, unless its digest is taken in its group: the first page of equal content is kept, and False told."""
        key = (group, entry.digest)
        if key in self._pages or page in self._entries:
            return False
        self._pages[key] = page
        self._entries[page] = (group, entry)
        return True

    def rest(self, page: int) -> None:
        """Mark an indexed page as idle, the last to be evicted."""
        self._idle[page] = None

    def wake(self, page: int) -> None:
        """Mark a page as held again, if it was idle."""
        self._idle.pop(page, None)

    def next_evicted(self) -> tuple[int, int, Entry]:
        """The page that `evict` returns next, with its group and what it holds."""
        page = next(iter(self._idle))
        return page, *self._entries[page]

    def evict(self) -> int:
        """Forget the page that has been idle for longest, and return it. At least one must be idle."""
        page = next(iter(self._idle))
        del self._idle[page]
        self.forget(page)
        return page

    def forget(self, page: int) -> None:
        """Take an indexed page out of the index."""
        group, entry = self._entries.pop(page)
        del self._pages[group, entry.digest]

    def idle_pages(self) -> set[int]:
        """The idle ids, for `Ledger.check`.

        Raises:
            LedgerError: digests and pages do not point at each other, or an idle page is not indexed.
        """
        forward = {page: key for key, page in self._pages.items()}
        backward = {page: (group, entry.digest) for page, (group, entry) in self._entries.items()}
        if forward != backward or len(forward) != len(self._pages):
            odd = sorted(page for page, _ in forward.items() ^ backward.items())
            raise LedgerError(f"prefix index: digests and pages disagree about pages {odd}")
        if stray := self._idle.keys() - self._entries.keys():
            raise LedgerError(f"prefix index: idle pages {sorted(stray)} are not indexed")
        return set(self._idle)
