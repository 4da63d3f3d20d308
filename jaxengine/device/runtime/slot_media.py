"""What the prompts of slots show, and what of it is told of each place of a step. NumPy only, as `inputs.py`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from jaxengine.contract.arrays import Int32s
from jaxengine.contract.batch import SlotState
from jaxengine.contract.media import SlotMedia

FILL = {"embeds": -1, "axes": 0, "until": 0, "crossed_until": 0}
"""What the fields have in padding."""


@dataclass(frozen=True)
class Shown:
    """Of one prompt: by position which embedding of the pool a token takes (-1: none), how far it sees, and where it is; the
    pages that all of it reads, of so many embeddings."""

    embeds: Int32s
    until: Int32s
    axes: Int32s | None
    offset: int
    pages: Int32s | None = None
    num_read: int = 0

    @classmethod
    def of(cls, media: SlotMedia) -> Shown:
        length = 1 + int(media.places.max(initial=-1))
        length = max(length, int(media.spans.max(initial=0)))
        embeds, until = np.full(length, -1, np.int32), np.arange(length, dtype=np.int32)
        embeds[media.places] = media.embeddings
        for begin, end in media.spans.tolist():
            until[begin:end] = end - 1
        return cls(embeds, until, media.axes, media.offset, media.pages, media.num_read)

    @property
    def length(self) -> int:
        """Positions before which something is other than usual."""
        return max(len(self.embeds), 0 if self.axes is None else self.axes.shape[1])


class SlotsMedia:
    """What the prompts of all slots show."""

    def __init__(self) -> None:
        self._shown: dict[int, Shown] = {}

    def begin(self, states: Iterable[SlotState]) -> None:
        """Slots that begin show what they are said to show, or nothing."""
        for state in states:
            self._shown.pop(state.slot, None)
            if state.media is not None:
                self._shown[state.slot] = Shown.of(state.media)

    def of(self, slots: Int32s) -> Iterable[tuple[int, Shown]]:
        """The rows, by number, whose slots show something."""
        if not self._shown:
            return ()
        return [(row, self._shown[slot]) for row, slot in enumerate(slots.tolist()) if slot in self._shown]


NOTHING = SlotsMedia()


@dataclass(frozen=True)
class StepMedia:
    """The fields of a step's places: `embeds [N]`, the row of the pool that a place takes, -1 the table of tokens; with
    `num_axes` A `axes [A, N]`, its position on each; with `sight` `until [N]`, the last position that it sees. Or where layers
    read up to `crossed_pages` pages of an encoder those of each row, `crossed_table [B, pages]`, and of each place the last
    position that there is, `crossed_until [N]`."""

    num_axes: int = 0
    sight: bool = False
    crossed_pages: int = 0

    @property
    def embeds(self) -> bool:
        """Whether places take embeddings."""
        return not self.crossed_pages

    def crossed_table(self, media: SlotsMedia, slots: Int32s, rows: int) -> Int32s:
        """The pages that rows of these slots read; of `rows` there is room."""
        table = np.zeros((rows, self.crossed_pages), np.int32)
        for row, shown in media.of(slots):
            if shown.pages is not None:
                table[row, : len(shown.pages)] = shown.pages
        return table

    def _crossed_until(self, media: SlotsMedia, slots: Int32s, counts: Int32s) -> Int32s:
        """The last position that there is for each place. A row that was shown nothing reads one place of the sink."""
        of_rows = np.zeros(len(slots), np.int32)
        for row, shown in media.of(slots):
            of_rows[row] = max(shown.num_read - 1, 0)
        return np.repeat(of_rows, counts)

    def shapes(self, places: int, rows: int = 0) -> dict[str, tuple[int, ...]]:
        """Of the fields."""
        if self.crossed_pages:
            return {"crossed_table": (rows, self.crossed_pages), "crossed_until": (places,)}
        shapes: dict[str, tuple[int, ...]] = {"embeds": (places,)}
        if self.num_axes:
            shapes["axes"] = (self.num_axes, places)
        if self.sight:
            shapes["until"] = (places,)
        return shapes

    @property
    def moving(self) -> tuple[str, ...]:
        """Fields that change with the position of a place behind the prompt."""
        return tuple(name for name in ("axes", "until") if name in self.shapes(0))

    def fields(
        self, media: SlotsMedia, slots: Int32s, counts: Int32s, starts: Int32s, positions: Int32s
    ) -> Mapping[str, Int32s]:
        """Their values for rows of these slots, in the places before the padding, at `positions [n]`."""
        if self.crossed_pages:
            return {"crossed_until": self._crossed_until(media, slots, counts)}
        embeds = np.full(len(positions), -1, np.int32)
        axes = np.tile(positions, (self.num_axes, 1))
        until = positions.copy()
        showing = media.of(slots)
        ends = np.cumsum(counts) if showing else counts
        for row, shown in showing:
            first, start, count = int(ends[row] - counts[row]), int(starts[row]), int(counts[row])
            if self.num_axes:
                axes[:, first : first + count] += shown.offset
            if start >= shown.length:
                continue
            part = shown.embeds[start : start + count]
            embeds[first : first + len(part)] = part
            until[first : first + len(part)] = shown.until[start : start + count]
            if self.num_axes and shown.axes is not None:
                known = shown.axes[:, start : start + count]
                axes[:, first : first + known.shape[1]] = known
        values = {"embeds": embeds, "axes": axes, "until": until}
        return {name: values[name] for name in self.shapes(0)}
