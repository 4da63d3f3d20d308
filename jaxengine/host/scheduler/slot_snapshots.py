"""Which states a step brings back before its rows and copies behind them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from jaxengine.contract.batch import SlotSnapshot
from jaxengine.host.kvcache.snapshots import Snapshots
from jaxengine.host.media.shown import NEVER
from jaxengine.host.scheduler.sequence import Sequence


def restored(beginning: Iterable[Sequence], snapshots: Snapshots) -> tuple[SlotSnapshot, ...]:
    """What the sequences that begin in a step go on from."""
    found = ((sequence.slot, snapshots.begin(sequence.sequence_id)) for sequence in beginning)
    return tuple(SlotSnapshot(slot, snapshot) for slot, snapshot in found if snapshot is not None)


def kept(sequences: Iterable[Sequence], snapshots: Snapshots) -> tuple[SlotSnapshot, ...]:
    """The snapshots that are due with the rows of a step, which are planned; each sequence is told where its next one is."""
    made = []
    for sequence in sequences:
        if sequence.num_computed != sequence.snapshot_end:
            continue
        snapshot = snapshots.keep(sequence.sequence_id, sequence.snapshot_end)
        if snapshot is not None:
            made.append(SlotSnapshot(sequence.slot, snapshot))
        plan_next(sequence, snapshots)
    return tuple(made)


def plan_next(sequence: Sequence, snapshots: Snapshots) -> None:
    """Tell a sequence where its next row has to end for a snapshot: nowhere in a prompt that is computed whole."""
    if sequence.whole:
        return
    last = sequence.max_cached
    end = snapshots.next_end(
        sequence.sequence_id,
        cast("list[int]", sequence.findable),
        start=sequence.num_computed,
        last=last,
        most=NEVER if sequence.pinned_end is None else last,
    )
    sequence.snapshot_end = NEVER if end is None else end
