"""Copies of what recurrent layers keep of a sequence, by the prefix they are of: where they are taken, found and given up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from jaxengine.contract.batch import FromHost
from jaxengine.contract.page_name import PageName
from jaxengine.host.kvcache.pages import LedgerError
from jaxengine.host.kvcache.pool import PagePool
from jaxengine.host.kvcache.prefix import Chain, Digest, Entry

REMEMBERED = 1 << 16
"""Block ends of prefixes that were computed, each a digest: enough to see where prompts part, in a few MiB."""


@dataclass(slots=True)
class Held:
    """What a sequence has to do with snapshots.

    `restores` is the one that it begins from, until it has; `coming` is what that will be of while it comes from the host, and
    nobody may read it. `taken` are those of prefixes whose last tokens are not known yet:
    `(pages, snapshot)`. Up to `parts` tokens it is like a prompt before it. By `expected` its next snapshot will be found.
    """

    chain: Chain
    parts: int
    restores: int | None = None
    coming: Entry | None = None
    taken: list[tuple[int, int]] = field(default_factory=list)
    expected: Digest | None = None


class Snapshots:
    """The snapshots of all prefixes. A sequence can go on behind a prefix only where there is one of its end.

    A snapshot has the bytes of thousands of tokens in pages, so there are few, at ends of whole `block`s of tokens:

    - of a prompt's last whole block, for whoever comes with the same prompt, or goes on with the conversation;
    - of the last block that a prompt has in common with one before it, where prompts part: the third one finds it;
    - with `every`, at multiples of so many tokens.

    Nobody holds a snapshot but who is about to begin from it, or has not yet said what it is of. All others can be found, or
    given up for another, the one that was found least lately first: it goes to a block of the host, where there are such, and
    comes back to who finds it there.

    To the tiers snapshots are pages of one more pool and of one more cache group, behind those of the model's layers.

    Args:
        num_snapshots: how many the device has room for.
        block: tokens, whole pages.
        every: tokens, whole blocks; 0: only where prompts end and part.

    Attributes:
        group: the number of the cache group.
    """

    def __init__(self, num_snapshots: int, *, page_size: int, block: int, every: int = 0) -> None:
        if block % page_size or every % block:
            raise ValueError(
                f"snapshots every {every} tokens at ends of {block} are not at ends of pages of {page_size}"
            )
        self.pool = PagePool(1 + num_snapshots)
        self.block = block
        self.every = every
        self.group = 0
        self._page_size = page_size
        self._held: dict[int, Held] = {}
        self._expected: Counter[Digest] = Counter()
        self._computed: dict[Digest, None] = {}

    def is_found(
        self,
        chain: Chain,
        tokens: Sequence[int],
        pages: int,
        *,
        from_host: bool = False,
        there: Collection[PageName] = (),
    ) -> bool:
        """Whether there is a snapshot of the first so many pages on the device, or may come there; arguments as in `Lookup.find`.

        What another is about to take, or to bring there, does not come from elsewhere too.
        """
        if not self._is_end(pages):
            return False
        entry = chain.entry(pages - 1, tokens)
        if self.pool.index.find(entry, self.group) is not None:
            return True
        if not from_host or entry.digest in self._expected or not self.pool.num_available:
            return False
        return self._block(entry) is not None or PageName(self.group, *entry) in there

    def absent(self, chain: Chain, tokens: Sequence[int], *, found: int, limit: int) -> list[PageName]:
        """The snapshots of more than the first `found` pages, up to `limit`, that are neither on the device nor on the host."""
        entries = (chain.entry(pages - 1, tokens) for pages in self._ends(found, limit))
        return [
            PageName(self.group, *entry)
            for entry in entries
            if self.pool.index.find(entry, self.group) is None and self._block(entry) is None
        ]

    def name(self, chain: Chain, tokens: Sequence[int], pages: int) -> PageName:
        """What the snapshot of the first so many pages is known by."""
        return PageName(self.group, *chain.entry(pages - 1, tokens))

    def last_end(self, pages: int) -> int:
        """The most pages, up to so many, of which there may be a snapshot."""
        step = self.block // self._page_size
        return pages // step * step

    def is_expected(self, chain: Chain, tokens: Sequence[int], *, found: int, limit: int) -> bool:
        """Whether others are about to take one of more than the first `found` pages, and no more than `limit`."""
        return bool(self._expected) and any(
            chain.entry(pages - 1, tokens).digest in self._expected for pages in self._ends(found, limit)
        )

    def add(
        self, sequence_id: int, chain: Chain, tokens: Sequence[int], *, found: int, limit: int
    ) -> tuple[FromHost, ...]:
        """A sequence that begins behind `found` pages of at most `limit` that it may take from others.

        Returns:
            The move that brings the snapshot from the host's block, which is held, if it is not on the device.
        """
        held = self._held[sequence_id] = Held(chain, self._in_common(chain, tokens, found, limit) * self._page_size)
        if not found:
            return ()
        entry = chain.entry(found - 1, tokens)
        held.restores = self.pool.index.find(entry, self.group)
        if held.restores is not None:
            self.pool.share(held.restores)
            return ()
        block, blocks = self._block(entry), self.pool.blocks
        assert blocks is not None
        assert block is not None
        blocks.hold(block)
        held.restores, held.coming = self.pool.take(), entry
        self._count(entry.digest, 1)
        return (blocks.come_back(block, held.restores),)

    def arrived(self, sequence_id: int) -> None:
        """What the sequence begins from is on the device with the next moves: others may find it there."""
        held = self._held[sequence_id]
        if held.coming is not None and held.restores is not None:
            self.pool.index.insert(held.coming, self.group, held.restores)
        self._comes_no_more(held)

    def begin(self, sequence_id: int) -> int | None:
        """The snapshot that the sequence begins from, in the step that is planned now; None where it begins from nothing."""
        held = self._held[sequence_id]
        snapshot, held.restores = held.restores, None
        if snapshot is not None:
            self.pool.drop(snapshot)
        return snapshot

    def next_end(self, sequence_id: int, tokens: Sequence[int], *, start: int, last: int, most: int) -> int | None:
        """Where behind `start` the sequence takes its next snapshot; None: nowhere.

        Others that could begin from it are told, if the tokens before it are known.

        Args:
            sequence_id: one that was added.
            tokens: its tokens that others may find.
            start: the next position to be computed.
            last: how many positions somebody with the same tokens could take.
            most: how far tokens are to be kept for others at all.
        """
        held, block = self._held[sequence_id], self.block
        ends = [last // block * block, held.parts]
        if self.every:
            ends.append((start // self.every + 1) * self.every)
        end = min((end for end in ends if start < end <= most), default=None)
        self._expect(
            held,
            None if end is None or end > len(tokens) else held.chain.entry(end // self._page_size - 1, tokens).digest,
        )
        return end

    def keep(self, sequence_id: int, end: int) -> int | None:
        """A place for the snapshot of the sequence's first `end` tokens; None where all are about to be restored."""
        if not self.pool.num_available:
            return None
        snapshot = self.pool.take()
        self._held[sequence_id].taken.append((end // self._page_size, snapshot))
        return snapshot

    def commit(self, sequence_id: int, tokens: Sequence[int], *, before: int, pages: int) -> None:
        """The sequence's first `pages` pages can be found, `before` of which could before; so can snapshots of them."""
        held = self._held[sequence_id]
        for end in self._ends(before, pages):
            self._note_computed(held.chain.entry(end - 1, tokens).digest)
        while held.taken and held.taken[0][0] <= pages:
            end, snapshot = held.taken.pop(0)
            entry = held.chain.entry(end - 1, tokens)
            self.pool.index.insert(entry, self.group, snapshot)
            if self.pool.blocks is not None:
                self.pool.blocks.offer(snapshot, entry, self.group)
            self.pool.drop(snapshot)

    def release(self, sequence_id: int) -> None:
        """Forget a sequence."""
        held = self._held.pop(sequence_id)
        self._expect(held, None)
        self._comes_no_more(held)
        for snapshot in _held_by(held):
            self.pool.drop(snapshot)

    def forget(self) -> None:
        """Forget all prefixes; nobody holds any."""
        self.pool.forget_idle()
        self._computed.clear()

    def check(self, sequence_ids: Collection[int]) -> list[int]:
        """Prove that what is held and expected is so by sequences that are there; the snapshots that they hold.

        Raises:
            LedgerError: it is not.
        """
        if self._held.keys() != set(sequence_ids):
            raise LedgerError(
                f"snapshots are held for sequences {sorted(self._held)}, and there are {sorted(sequence_ids)}"
            )
        expected = Counter(held.expected for held in self._held.values() if held.expected)
        expected.update(held.coming.digest for held in self._held.values() if held.coming)
        if self._expected != expected:
            raise LedgerError(
                "expected snapshots are not those that sequences are about to take or to bring to the device"
            )
        return [snapshot for held in self._held.values() for snapshot in _held_by(held)]

    def _in_common(self, chain: Chain, tokens: Sequence[int], found: int, limit: int) -> int:
        """The most pages at a block's end that somebody has computed before."""
        common = found
        for pages in self._ends(found, limit):
            digest = chain.entry(pages - 1, tokens).digest
            if digest not in self._computed:
                break
            self._note_computed(digest)
            common = pages
        return common

    def _note_computed(self, digest: Digest) -> None:
        self._computed.pop(digest, None)
        self._computed[digest] = None
        if len(self._computed) > REMEMBERED:
            del self._computed[next(iter(self._computed))]

    def _expect(self, held: Held, digest: Digest | None) -> None:
        if held.expected is not None:
            self._count(held.expected, -1)
        held.expected = digest
        if digest is not None:
            self._count(digest, 1)

    def _comes_no_more(self, held: Held) -> None:
        if held.coming is not None:
            self._count(held.coming.digest, -1)
            held.coming = None

    def _count(self, digest: Digest, more: int) -> None:
        self._expected[digest] += more
        if not self._expected[digest]:
            del self._expected[digest]

    def _block(self, entry: Entry) -> int | None:
        """The host's block that holds this."""
        return None if self.pool.blocks is None else self.pool.blocks.find(entry, self.group)

    def _is_end(self, pages: int) -> bool:
        return pages * self._page_size % self.block == 0

    def _ends(self, before: int, pages: int) -> range:
        """Block ends among the pages behind the first `before` of so many, as numbers of pages."""
        step = self.block // self._page_size
        return range((before // step + 1) * step, pages + 1, step)


def _held_by(held: Held) -> list[int]:
    own = [snapshot for _, snapshot in held.taken]
    return own if held.restores is None else [held.restores, *own]
