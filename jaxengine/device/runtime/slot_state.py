"""From `SlotState`s to the buffers of the programs that write slots, and what the host remembers of each slot."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxengine.contract.arrays import Int32s, Masks
from jaxengine.contract.batch import SamplingSpec, SlotState
from jaxengine.contract.sampling_options import Needs
from jaxengine.contract.sampling_params import MAX_LOGIT_BIAS
from jaxengine.device.runtime.inputs import FlatRows, KeptPlaces
from jaxengine.device.runtime.programs import BIAS_NAME, HISTORY_NAME, MASKS_NAME, SETTINGS_NAME, SLOTS_PER_LAUNCH
from jaxengine.device.runtime.space import ProgramSpace
from jaxengine.device.sampling import Variant
from jaxengine.device.sampling.slots import SETTINGS, settings_row

Write = tuple[str, NDArray[Any]]
"""The name of a program that writes slots, and what it is given."""


class SlotTable:
    """What the host remembers of the slots: what each `Needs` for its sampling, and the adapter that it goes through."""

    def __init__(self, num_slots: int) -> None:
        self._needs = np.zeros(num_slots, np.int8)
        self._adapters = np.zeros(num_slots, np.int32)

    def begin(self, states: Iterable[SlotState]) -> None:
        for state in states:
            self._needs[state.slot] = state.spec.needs
            self._adapters[state.slot] = state.adapter

    def adapters(self, rows: FlatRows) -> Int32s | None:
        """Of each row; None: none of them goes through any."""
        found: Int32s = self._adapters[rows.slots]
        return found if found.any() else None

    def logprobs(self, kept: KeptPlaces) -> NDArray[np.bool_]:
        """Which places are asked for log probabilities."""
        asked: NDArray[np.bool_] = (self._of(kept) & int(Needs.LOGPROBS)) > 0
        return asked

    def order(self, kept: KeptPlaces) -> tuple[NDArray[np.intp], int, Variant]:
        """The places in the order in which to sample them, how many are sampled, and the least variant that serves these.

        Those that need most come first: what one row needs is done for its group. Pooled ones are last.
        """
        if kept.all_sampled and not self._needs[kept.slots].any():
            return np.arange(len(kept)), len(kept), Variant.serving(0)
        needs = self._of(kept)
        most = needs.max(initial=0)
        order = np.argsort(np.where(kept.pooled, 1, -needs), kind="stable")
        return order, int(np.count_nonzero(~kept.pooled)), Variant.serving(most)

    def _of(self, kept: KeptPlaces) -> NDArray[np.int8]:
        needs = np.where(kept.targets >= 0, int(Needs.LOGPROBS), self._needs[kept.slots])
        return np.where(kept.pooled, 0, needs).astype(np.int8)


def begin_writes(states: Sequence[SlotState], space: ProgramSpace) -> Iterator[Write]:
    """What it takes to begin these slots. Only what a slot needs is written: the rest of it is not looked at."""
    for chunk in _chunks(states):
        rows = np.zeros((SLOTS_PER_LAUNCH, 1 + len(SETTINGS)), np.int32)
        for row, state in zip(rows, chunk, strict=False):
            row[0], row[1:] = state.slot, settings_row(state.spec)
        yield SETTINGS_NAME, rows
    everything = np.full(space.slots.allowed.shape[1], 0xFFFFFFFF, np.uint32)
    places = 1 + space.num_drafts
    masks = {
        state.slot: (everything if state.allowed is None else state.allowed,) * places
        for state in states
        if state.spec.masked
    }
    yield from mask_writes(masks, space)
    for state in states:
        if state.spec.bias_ids:
            yield BIAS_NAME, _bias(state)
        if state.spec.has_penalties:
            yield from ((HISTORY_NAME, piece) for piece in _history(state, space.history_tokens))


def mask_writes(masks: Mapping[int, Masks], space: ProgramSpace) -> Iterator[Write]:
    """What it takes to give slots these masks, each of which is of another place of a row."""
    num_slots = space.max_num_seqs + 1
    by_row = [(slot + nth * num_slots, mask) for slot, each in masks.items() for nth, mask in enumerate(each)]
    for chunk in _chunks(by_row):
        rows = np.zeros((SLOTS_PER_LAUNCH, 1 + len(chunk[0][1])), np.uint32)
        for row, (number, allowed) in zip(rows, chunk, strict=False):
            row[0], row[1:] = number, allowed
        yield MASKS_NAME, rows


def sink_writes(space: ProgramSpace) -> Iterator[Write]:
    """One of each kind, to the sink; it needs nothing."""
    yield SETTINGS_NAME, np.zeros((SLOTS_PER_LAUNCH, 1 + len(SETTINGS)), np.int32)
    yield from mask_writes({0: (np.zeros(space.slots.allowed.shape[1], np.uint32),)}, space)
    nothing = SlotState(0, SamplingSpec(temperature=0.0, seed=0))
    yield BIAS_NAME, _bias(nothing)
    yield from ((HISTORY_NAME, piece) for piece in _history(nothing, space.history_tokens))


def _bias(state: SlotState) -> Int32s:
    buffer = np.full(1 + 2 * MAX_LOGIT_BIAS, -1, np.int32)
    count = len(state.spec.bias_ids)
    buffer[0] = state.slot
    buffer[1 : 1 + count] = state.spec.bias_ids
    buffer[1 + MAX_LOGIT_BIAS : 1 + MAX_LOGIT_BIAS + count] = np.array(state.spec.bias_values, np.float32).view(
        np.int32
    )
    return buffer


def _history(state: SlotState, size: int) -> Iterator[Int32s]:
    """A sequence's tokens, so many at a time; the first of the writes forgets what was counted before."""
    history = np.zeros(0, np.int32) if state.history is None else state.history
    for begin in range(0, max(1, len(history)), size):
        piece = history[begin : begin + size]
        buffer = np.full(3 + size, -1, np.int32)
        buffer[:3] = state.slot, begin > 0, max(0, state.num_prompt - begin)
        buffer[3 : 3 + len(piece)] = piece
        yield buffer


def _chunks(items: Sequence[Any]) -> Iterator[Sequence[Any]]:
    return (items[i : i + SLOTS_PER_LAUNCH] for i in range(0, len(items), SLOTS_PER_LAUNCH))
