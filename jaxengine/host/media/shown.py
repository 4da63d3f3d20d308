"""What one sequence's prompt shows, and how far its rows may reach."""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Mapping

import numpy as np

from jaxengine.contract.arrays import Int32s
from jaxengine.contract.media import MediaItem, PromptMedia, SlotMedia
from jaxengine.host.media.pool import Key, PooledItem

NEVER = sys.maxsize
NO_SPANS: Int32s = np.zeros((0, 2), np.int32)


class Shown:
    """The items of a prompt, and those of them whose pages its sequence holds.

    Where items see each other (`sight`) no row ends within a *run* of consecutive places of one. An item is needed as long as one
    of its places is to be computed; one that cross attention reads, always.
    """

    __slots__ = (
        "_all_encoded",
        "_firsts",
        "_held",
        "_needed_until",
        "_page_size",
        "_run_ends",
        "_run_starts",
        "keys",
        "media",
        "request_id",
    )

    def __init__(self, media: PromptMedia, request_id: str, salt: str | None, *, page_size: int, sight: bool) -> None:
        self.media = media
        self._page_size = page_size
        self.request_id = request_id
        self.keys: tuple[Key, ...] = tuple((item.digest, salt) for item in media.items)
        self._firsts = [0 if item.unplaced else int(item.places[0]) for item in media.items]
        self._needed_until = [NEVER if item.unplaced else int(item.places[-1]) + 1 for item in media.items]
        runs = sorted(run for item in media.items for run in runs_of(item)) if sight else []
        self._run_starts = [start for start, _ in runs]
        self._run_ends = [end for _, end in runs]
        self._held: dict[int, PooledItem] = {}
        self._all_encoded = False

    @property
    def held(self) -> Mapping[int, PooledItem]:
        """By their numbers, the items whose pages it holds."""
        return self._held

    @property
    def ready_end(self) -> int:
        """The first place of an item that is not encoded: no row reaches further."""
        if self._all_encoded:
            return NEVER
        waited_for = [self._firsts[number] for number, pooled in self._held.items() if not pooled.encoded]
        self._all_encoded = not waited_for
        return min(waited_for, default=NEVER)

    def has_runs(self, start: int) -> bool:
        """Whether rows may not end everywhere behind `start`."""
        return bool(self._run_ends) and self._run_ends[-1] > start

    def whole_end(self, end: int) -> int:
        """The last position up to `end` at which a row may end."""
        number = bisect_left(self._run_starts, end) - 1  # the last run that begins before it
        if number < 0 or self._run_ends[number] <= end:
            return end
        return self._run_starts[number]

    def next_end(self, end: int) -> int:
        """The first position from `end` on at which a row may end."""
        number = bisect_left(self._run_starts, end) - 1
        return end if number < 0 else max(end, self._run_ends[number])

    def needed(self, start: int) -> list[int]:
        """The numbers of items that are needed where the prompt is computed from `start` on."""
        return [number for number, until in enumerate(self._needed_until) if until > start]

    def hold(self, held: dict[int, PooledItem]) -> None:
        """These pages are its from now on."""
        assert not self._held
        self._held = held
        self._all_encoded = False

    def take_passed(self, computed: int) -> list[PooledItem]:
        """What it needs no more, behind so many positions; it does not hold them from now on."""
        passed = [number for number in self._held if self._needed_until[number] <= computed]
        return [self._held.pop(number) for number in passed]

    def take_all(self) -> list[PooledItem]:
        """It holds nothing from now on."""
        held, self._held = list(self._held.values()), {}
        return held

    def slot(self) -> SlotMedia:
        """What the device is told when the sequence begins in a slot."""
        items = self.media.items
        pages = [self._held[number].pages for number, item in enumerate(items) if item.unplaced]
        runs = [*zip(self._run_starts, self._run_ends, strict=True)]
        return SlotMedia(
            places=np.concatenate([item.places for item in items]).astype(np.int32),
            embeddings=np.concatenate([self._embeddings(number) for number in range(len(items))]),
            spans=NO_SPANS if not runs else np.asarray(runs, np.int32),
            pages=np.concatenate(pages) if pages else None,
            num_read=sum(item.unplaced for item in items),
            axes=self.media.axes,
            offset=self.media.offset,
        )

    def _embeddings(self, number: int) -> Int32s:
        """Where those of an item's places lie; -1 where it is needed no more."""
        count, pooled = len(self.media.items[number].places), self._held.get(number)
        if pooled is None:
            return np.full(count, -1, np.int32)
        size = self._page_size
        within = np.arange(count, dtype=np.int32)
        embeddings: Int32s = pooled.pages[within // size] * np.int32(size) + within % np.int32(size)
        return embeddings


def runs_of(item: MediaItem) -> list[tuple[int, int]]:
    """Runs of consecutive places of an item: from, up to and without."""
    places = item.places
    if not len(places):
        return []
    cuts = np.flatnonzero(np.diff(places) != 1) + 1
    starts, ends = places[[0, *cuts]], places[[*(cuts - 1), -1]] + 1
    return [*zip(starts.tolist(), ends.tolist(), strict=True)]
