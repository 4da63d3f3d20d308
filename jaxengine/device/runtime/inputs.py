"""From the rows of a `Batch` to one int32 buffer, so that a step costs one transfer to the device.

This file needs NumPy only: it belongs to the device half, yet the host's share of a step is measured with it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from buckets import Bucket
from jaxengine.contract.batch import ONE, Int32s, Pool, Rows, Sample, Score, Want


@dataclass(frozen=True)
class StepLayout:
    """Where the fields of a step lie in its buffer.

    For N places and B rows of `bucket`, `pages_per_row` P, `kept` K, and `num_groups` G of layers with pages of their own.
    """

    bucket: Bucket
    pages_per_row: int
    kept: int
    num_groups: int = 1

    @cached_property
    def fields(self) -> Mapping[str, tuple[int, tuple[int, ...]]]:
        """The offset and shape of each field.

        Of each place: `tokens`, where `-s` stands for the last token of slot `s`; `positions`; by group `slot_mapping`, where its
        keys and values go (`page * page_size + offset`). Padding is token 0 at position 0, and written to the sink.

        Of each row: `offsets`, `starts` and by group `page_table`, as `pallas_kernels.paged_attention` has them, and the slot of
        its sequence. Rows that are not there are empty ones at the end, of slot 0.

        Of each kept place: its place, and the fields of `SampleInputs`; `count` of them are sampled. Padding is place 0, slot 0.
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
            "count": (),
        }
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
        return self.spans["count"][1]

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
    def of(cls, rows: Rows) -> FlatRows:
        """Make arrays of rows.

        Raises:
            ValueError: the count of a row is not that of its tokens, or it is of drafts that the device should have.
        """
        slots, starts = np.array(rows.slots, np.int32), np.array(rows.starts, np.int32)
        if rows.tokens.count(None) == len(rows):  # a step that only decodes
            flat, fitting = -slots, rows.counts.count(1) == len(rows)
            counts = np.ones(len(rows), np.int32)
        else:
            counts = np.array(rows.counts, np.int32)
            places = [(-slot,) if given is None else given for slot, given in zip(rows.slots, rows.tokens, strict=True)]
            flat = np.array(list(chain.from_iterable(places)), np.int32)
            fitting = list(map(len, places)) == rows.counts
        if not fitting:
            wrong = next(row for row in rows if row.num_tokens != (1 if row.tokens is None else len(row.tokens)))
            raise ValueError(
                f"the row of slot {wrong.slot} says that it has {wrong.num_tokens} tokens: without tokens it has one, as the "
                "device keeps no drafts, and otherwise as many as it brings"
            )
        return cls(slots, counts, starts, flat, rows.wants)

    def __len__(self) -> int:
        return len(self.slots)


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

    def take(self, rows: FlatRows, out: Int32s) -> None:
        """Write the page tables of each row to `out` `[G, B, P]`, which is zero: as many pages as the longest has.

        What follows a slot's own pages there is of whoever had it before.

        Raises:
            ValueError: the pages of a row do not hold its tokens.
        """
        held = self._num_tokens[rows.slots]
        if (rows.starts + rows.counts > held).any():
            raise ValueError("a row has tokens beyond its pages")
        width = int(held.max(initial=0)) // self.page_size
        out[:, : len(rows), :width] = self._tables[:, rows.slots, :width]


@dataclass(frozen=True)
class KeptPlaces:
    """The kept places of a step, in the order of its rows.

    `rows` their numbers, `at` which token of its row each is; `slots`, `targets` and `writes` as in `SampleInputs`. Of those
    that are `pooled` the hidden states are asked for; they are not sampled.
    """

    rows: Int32s
    at: Int32s
    slots: Int32s
    targets: Int32s
    writes: Int32s
    pooled: NDArray[np.bool_]

    @classmethod
    def of(cls, rows: FlatRows) -> KeptPlaces:
        if rows.wants.count(ONE) == len(rows):
            numbers = np.arange(len(rows), dtype=np.int32)
            none = np.full(len(rows), -1, np.int32)
            return cls(numbers, rows.counts - 1, rows.slots, none, rows.slots, np.zeros(len(rows), np.bool_))
        places: list[tuple[int, int, int, bool, bool]] = []  # row, at, target, whether written, whether pooled
        for row, (want, count) in enumerate(zip(rows.wants, rows.counts.tolist(), strict=True)):
            if isinstance(want, Sample):
                places += [(row, at, -1, at == count - 1, False) for at in range(count - want.last, count)]
            elif isinstance(want, Score):
                places += [(row, at, target, False, False) for at, target in enumerate(want.targets)]
                if want.sample:
                    places.append((row, len(want.targets), -1, True, False))
            elif isinstance(want, Pool):
                places.append((row, count - 1, -1, False, True))
        number, at, targets, written, pooled = np.array(places, np.int32).reshape(-1, 5).T
        slots = rows.slots[number]
        return cls(number, at, slots, targets, np.where(written, slots, 0), pooled != 0)

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
) -> Int32s:
    """Write the rows of a step into a fresh buffer of `layout.size` words.

    The kept places go in in `order`; the first `num_sampled` are sampled.

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
    buffer[layout.spans["count"][0]] = num_sampled
    return buffer


def _check_fit(layout: StepLayout, *, rows: int, tokens: int, kept: int) -> None:
    bucket = layout.bucket
    if rows > bucket.batch or tokens > bucket.tokens:
        raise ValueError(f"{rows} rows with {tokens} tokens do not fit bucket {bucket}")
    if kept > layout.kept:
        raise ValueError(f"{kept} kept places do not fit the {layout.kept} of a step")
