"""From the rows of a `Batch` to one int32 buffer, so that a step costs one transfer to the device.

This file needs NumPy only: it belongs to the device half, yet the host's share of a step is measured with it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from buckets import Bucket
from jaxengine.contract.arrays import Int32s
from jaxengine.contract.rows import ONE, Pool, Rows, Sample, Score, Want
from jaxengine.device.runtime.slot_media import FILL, NOTHING, SlotsMedia, StepMedia


@dataclass(frozen=True)
class StepLayout:
    """Where the fields of a step lie in its buffer.

    For N places and B rows of `bucket`, `pages_per_row` P, `kept` K, and `num_groups` G of layers with pages of their own.
    One that is `wide` is for steps in which a row needs more pages than another layout of the bucket has; one with `adapters`,
    so many slots of them, for steps in which a row goes through an adapter. With `drafts` rows may have such. `media` is of a
    model that sees or hears.
    """

    bucket: Bucket
    pages_per_row: int
    kept: int
    num_groups: int = 1
    wide: bool = False
    adapters: int = 0
    drafts: bool = False
    media: StepMedia | None = None

    def __str__(self) -> str:
        return f"{self.bucket}{' wide' if self.wide else ''}{' adapters' if self.adapters else ''}"

    @cached_property
    def fields(self) -> Mapping[str, tuple[int, tuple[int, ...]]]:
        """The offset and shape of each field.

        Of each place: `tokens`, where `-s` stands for the last token of slot `s`, and `-(s + jS)` for draft j of it, counted from
        1, of S slots; `positions`; by group `slot_mapping`, where its
        keys and values go (`page * page_size + offset`). Padding is token 0 at position 0, and written to the sink.

        Of each row: `offsets`, `starts` and by group `page_table`, as `pallas_kernels.paged_attention` has them, and the slot of
        its sequence. Rows that are not there are empty ones at the end, of slot 0.

        Of each kept place: its place, and the fields of `SampleInputs`; `count` of them are sampled. Padding is place 0, slot 0.
        With drafts `kept_nth` too. Where the tokens are negative the device knows better where a row starts: its places and what
        follows from them are as if it started at `starts`, until they are corrected there (`device/runtime/drafting.py`).

        `used` places have to be computed: those before the padding.

        Of a model that sees or hears those of `device/runtime/slot_media.py`.

        With adapters the fields of `pallas_kernels.AdapterRows`, of all places, padding being without one.
        """
        places, batch = self.bucket.tokens, self.bucket.batch
        shapes = {
            "tokens": (places,),
            "positions": (places,),
            "slot_mapping": (self.num_groups, places),
            "offsets": (batch + 1,),
            "starts": (batch,),
            "row_slots": (batch,),
            "page_table": (self.num_groups, batch, self.pages_per_row),
            "kept_places": (self.kept,),
            "kept_slots": (self.kept,),
            "kept_positions": (self.kept,),
            "kept_targets": (self.kept,),
            "kept_writes": (self.kept,),
            **({"kept_nth": (self.kept,)} if self.drafts else {}),
            "count": (),
            "used": (),
        }
        if self.adapters:
            shapes |= {"adapter_order": (places,), "adapter_places": (places,), "adapter_sizes": (self.adapters,)}
        if self.media is not None:
            shapes |= self.media.shapes(places, batch)
        sizes = [math.prod(shape) for shape in shapes.values()]
        offsets = np.cumsum([0, *sizes]).tolist()
        return {name: (offset, shape) for (name, shape), offset in zip(shapes.items(), offsets, strict=False)}

    @cached_property
    def spans(self) -> Mapping[str, tuple[int, int]]:
        """Where each field begins and ends."""
        return {name: (offset, offset + math.prod(shape)) for name, (offset, shape) in self.fields.items()}

    @cached_property
    def size(self) -> int:
        """Length of the buffer in int32 words."""
        return max(end for _, end in self.spans.values())

    def view(self, buffer: Int32s, name: str) -> Int32s:
        """One field of a buffer, to write to."""
        begin, end = self.spans[name]
        return buffer[begin:end].reshape(self.fields[name][1])


@dataclass(frozen=True)
class FlatRows:
    """Rows by field: `slots`, `counts` of tokens, `starts` `[n]`; `tokens` of all, one row after the other, as in the buffer."""

    slots: Int32s
    counts: Int32s
    starts: Int32s
    tokens: Int32s
    wants: Sequence[Want]

    @classmethod
    def of(cls, rows: Rows, *, num_slots: int = 1, num_drafts: int = 0) -> FlatRows:
        """Make arrays of rows, where each of `num_slots` slots has so many drafts on the device.

        Raises:
            ValueError: the count of a row is not that of its tokens, or it is of more drafts than the device has.
        """
        slots, starts = np.array(rows.slots, np.int32), np.array(rows.starts, np.int32)
        if rows.tokens.count(None) == len(rows) == rows.counts.count(1):  # a step that only decodes
            return cls(slots, np.ones(len(rows), np.int32), starts, -slots, rows.wants)
        counts = np.array(rows.counts, np.int32)
        flat = _of_device(slots, counts, num_slots)
        given = [(row, tokens) for row, tokens in enumerate(rows.tokens) if tokens is not None]
        fits = counts <= 1 + num_drafts
        for row, tokens in given:
            fits[row] = len(tokens) == counts[row]
        if not fits.all():
            wrong = rows[int(fits.argmin())]
            raise ValueError(
                f"the row of slot {wrong.slot} says that it has {wrong.num_tokens} tokens: without tokens it has one and at most "
                f"the {num_drafts} drafts that the device keeps, and otherwise as many as it brings"
            )
        ends = np.cumsum(counts)
        for row, tokens in given:
            flat[ends[row] - len(tokens) : ends[row]] = tokens
        return cls(slots, counts, starts, flat, rows.wants)

    def __len__(self) -> int:
        return len(self.slots)


def _of_device(slots: Int32s, counts: Int32s, num_slots: int) -> Int32s:
    """The places of rows whose tokens the device has."""
    ends = np.cumsum(counts)
    nth = np.arange(ends[-1]) - np.repeat(ends - counts, counts)
    return (-np.repeat(slots, counts) - nth * num_slots).astype(np.int32)


class PageTables:
    """The page tables of all slots, by group. A sequence's pages change once in a page of tokens, and are sent then."""

    def __init__(self, num_slots: int, *, pages_per_row: int, page_size: int, num_groups: int = 1) -> None:
        self.page_size = page_size
        self._tables = np.zeros((num_groups, num_slots, pages_per_row), np.int32)
        self._num_tokens = np.zeros(num_slots, np.int32)

    def write(self, tables: Iterable[tuple[int, Int32s]]) -> None:
        """Give slots the pages that are theirs from this step on."""
        for slot, pages in tables:
            width = pages.shape[1]
            self._tables[:, slot, :width] = pages[:, : self._tables.shape[2]]
            self._num_tokens[slot] = width * self.page_size

    def longest(self, rows: FlatRows) -> int:
        """The pages of the row that has the most."""
        return int(self._num_tokens[rows.slots].max(initial=0)) // self.page_size

    def take(self, rows: FlatRows, out: Int32s) -> None:
        """Write the page tables of each row to `out` `[G, B, P]`, which is zero: as many pages as the longest has.

        What follows a slot's own pages there is of whoever had it before.

        Raises:
            ValueError: the pages of a row do not hold its tokens.
        """
        held = self._num_tokens[rows.slots]
        if (rows.starts + rows.counts > held).any():
            raise ValueError("a row has tokens beyond its pages")
        width = self.longest(rows)
        out[:, : len(rows), :width] = self._tables[:, rows.slots, :width]


@dataclass(frozen=True)
class KeptPlaces:
    """The kept places of a step, in the order of its rows.

    `rows` their numbers, `at` which token of its row each is; `slots`, `targets` and `writes` as in `SampleInputs`. Of those
    that are `pooled` the hidden states are asked for; they are not sampled. A row that wants something of each of its tokens has
    one place all the same. `nth` says how many drafts stand before a place. `all_sampled` says that none is pooled or scored.
    """

    rows: Int32s
    at: Int32s
    nth: Int32s
    slots: Int32s
    targets: Int32s
    writes: Int32s
    pooled: NDArray[np.bool_]
    all_sampled: bool = False

    @classmethod
    def of(cls, rows: FlatRows) -> KeptPlaces:
        if rows.wants.count(ONE) == len(rows):
            numbers = np.arange(len(rows), dtype=np.int32)
            none = np.full(len(rows), -1, np.int32)
            zeros = np.zeros(len(rows), np.int32)
            return cls(numbers, rows.counts - 1, zeros, rows.slots, none, rows.slots, zeros != 0, all_sampled=True)
        if {Sample, type(None)}.issuperset(map(type, rows.wants)):
            lasts = np.array([0 if want is None else want.last for want in rows.wants], np.int32)  # type: ignore[union-attr]
            of_row = np.repeat(np.arange(len(rows), dtype=np.int32), lasts)
            behind = np.arange(len(of_row), dtype=np.int32) - np.repeat(np.cumsum(lasts, dtype=np.int32) - lasts, lasts)
            of_slot = rows.slots[of_row]
            none = np.full(len(of_row), -1, np.int32)
            at = (rows.counts - lasts)[of_row] + behind
            return cls(of_row, at, behind, of_slot, none, of_slot, none > 0, all_sampled=True)
        places: list[
            tuple[int, int, int, int, bool, bool]
        ] = []  # row, at, nth, target, whether written, whether pooled
        for row, (want, count) in enumerate(zip(rows.wants, rows.counts.tolist(), strict=True)):
            if isinstance(want, Sample):
                places += [(row, count - want.last + nth, nth, -1, True, False) for nth in range(want.last)]
            elif isinstance(want, Score):
                places += [(row, at, 0, target, False, False) for at, target in enumerate(want.targets)]
                if want.sample:
                    places.append((row, len(want.targets), 0, -1, True, False))
            elif isinstance(want, Pool):
                places.append((row, count - 1, 0, -1, False, True))
        number, at, nth, targets, written, pooled = np.array(places, np.int32).reshape(-1, 6).T
        slots = rows.slots[number]
        return cls(number, at, nth, slots, targets, np.where(written, slots, 0), pooled != 0)

    def __len__(self) -> int:
        return len(self.rows)


def pad(
    layout: StepLayout,
    rows: FlatRows,
    kept: KeptPlaces,
    order: NDArray[np.intp],
    tables: PageTables,
    *,
    num_sampled: int,
    adapters: Int32s | None = None,
    media: SlotsMedia | None = None,
) -> Int32s:
    """Write the rows of a step into a fresh buffer of `layout.size` words.

    The kept places go in in `order`; the first `num_sampled` are sampled. `adapters` are the slots of the rows' adapters, for a
    layout that has such, `media` is what slots' prompts show, None being nothing.

    Raises:
        ValueError: the rows do not fit the bucket, or their pages do not hold them, which is an error of the scheduler.
    """
    num_rows, num_tokens, size = len(rows), len(rows.tokens), tables.page_size
    _check_fit(layout, rows=num_rows, tokens=num_tokens, kept=len(kept))
    buffer = np.zeros(layout.size, np.int32)  # memory that is not touched costs little

    def put(name: str, values: Int32s, fill: int = 0) -> None:
        offset, end = layout.spans[name]
        padding = offset + len(values)
        buffer[offset:padding] = values
        if fill:
            buffer[padding:end] = fill

    page_table = layout.view(buffer, "page_table")
    tables.take(rows, page_table)
    row_of = np.arange(num_rows)
    if num_tokens == num_rows:  # one of each
        offsets, positions = np.arange(num_rows + 1, dtype=np.int32), rows.starts
    else:
        offsets = np.zeros(num_rows + 1, np.int32)
        np.cumsum(rows.counts, out=offsets[1:])
        row_of = np.repeat(row_of, rows.counts)
        positions = np.arange(num_tokens, dtype=np.int32) + (rows.starts - offsets[:-1])[row_of]
    put("tokens", rows.tokens)
    put("positions", positions)
    page, offset_in_page = np.divmod(positions, size)
    layout.view(buffer, "slot_mapping")[:, :num_tokens] = page_table[:, row_of, page] * size + offset_in_page
    put("offsets", offsets, fill=num_tokens)
    put("starts", rows.starts)
    put("row_slots", rows.slots)

    places = (offsets[kept.rows] + kept.at)[order]
    put("kept_places", places)
    put("kept_slots", kept.slots[order])
    put("kept_positions", positions[places] + 1)
    put("kept_targets", kept.targets[order], fill=-1)
    put("kept_writes", kept.writes[order])
    if layout.drafts:
        put("kept_nth", kept.nth[order])
    buffer[layout.spans["count"][0]] = num_sampled
    buffer[layout.spans["used"][0]] = num_tokens
    _put_media(layout, buffer, rows, positions, media or NOTHING)
    if adapters is not None:
        _put_adapters(layout, buffer, adapters[row_of])
    return buffer


def _put_media(layout: StepLayout, buffer: Int32s, rows: FlatRows, positions: Int32s, media: SlotsMedia) -> None:
    """What slots' prompts show, at the places of a step whose tokens have these `positions [N]`; of a layout without, nothing."""
    if layout.media is None:
        return
    for name, values in layout.media.fields(media, rows.slots, rows.counts, rows.starts, positions).items():
        layout.view(buffer, name)[..., : len(positions)] = values
        layout.view(buffer, name)[..., len(positions) :] = FILL[name]
    if layout.media.crossed_pages:
        table = layout.media.crossed_table(media, rows.slots, layout.bucket.batch)
        layout.view(buffer, "crossed_table")[...] = table


def _put_adapters(layout: StepLayout, buffer: Int32s, adapters: Int32s) -> None:
    """The places of a step sorted by the slots of their `adapters [N]`, those without (0) last, and how many each slot has."""
    of_places = np.zeros(layout.bucket.tokens, np.int32)
    of_places[: len(adapters)] = adapters
    order = np.argsort(np.where(of_places, of_places, layout.adapters + 1), kind="stable").astype(np.int32)
    layout.view(buffer, "adapter_order")[...] = order
    layout.view(buffer, "adapter_places")[order] = np.arange(len(order), dtype=np.int32)
    sizes = np.bincount(of_places, minlength=1 + layout.adapters)[1:]
    layout.view(buffer, "adapter_sizes")[...] = sizes


def _check_fit(layout: StepLayout, *, rows: int, tokens: int, kept: int) -> None:
    bucket = layout.bucket
    if rows > bucket.batch or tokens > bucket.tokens:
        raise ValueError(f"{rows} rows with {tokens} tokens do not fit bucket {bucket}")
    if kept > layout.kept:
        raise ValueError(f"{kept} kept places do not fit the {layout.kept} of a step")
