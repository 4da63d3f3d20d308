"""Placeholders of a prompt become as many tokens as its items have embeddings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from jaxengine.contract.arrays import Int32s
from jaxengine.contract.media import MediaItem, Modality, PromptMedia
from jaxengine.errors import RequestError
from jaxengine.media.processors.processor import Made, Processor

NOWHERE = np.zeros(0, np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """An item of a prompt; `digest` is of its content and of all that the processor was told."""

    modality: Modality
    digest: bytes
    made: Made


def placed(ids: Sequence[int], items: Sequence[Prepared], processor: Processor) -> tuple[tuple[int, ...], PromptMedia]:
    """The ids of a prompt with what stands for its items in them, and where.

    A placeholder (`Processor.marks`) of a modality stands for the next item of it. Ids in which the items stand already, such as
    those of an earlier answer, stay as they are.

    Raises:
        RequestError: there are not as many placeholders as items.
    """
    given = np.asarray(ids, np.int32)
    standing = [item for item in items if not item.made.unplaced]
    spans = _standing(given, standing)
    marked = spans is None
    if spans is None:
        spans = _marked(given, standing, processor)
    pieces: list[Int32s] = []
    found: list[tuple[Prepared, Int32s]] = []
    at = length = 0
    for start, end, item in spans:
        before = given[at:start]
        if marked and item.made.lead is not None:
            before = processor.led(before, item.made.lead)
        pieces += [before, item.made.tokens]
        length += len(before)
        found.append((item, (length + np.flatnonzero(item.made.embeds)).astype(np.int32)))
        length += len(item.made.tokens)
        at = end
    found += [(item, NOWHERE) for item in items if item.made.unplaced]
    whole = np.concatenate([*pieces, given[at:]])
    axes = processor.axes(len(whole), [(item.made, places) for item, places in found])
    media = PromptMedia(
        items=tuple(
            MediaItem(
                digest=item.digest,
                modality=item.modality,
                patches=item.made.patches,
                grid=item.made.grid,
                places=places,
                unplaced=item.made.unplaced,
                mosaic=item.made.mosaic,
                given=item.made.given,
            )
            for item, places in found
        ),
        axes=None if axes is None else axes[0],
        offset=0 if axes is None else axes[1],
    )
    return tuple(whole.tolist()), media


Spans = list[tuple[int, int, Prepared]]
"""From, up to and without, and the item that stands there."""


def _marked(given: Int32s, items: Sequence[Prepared], processor: Processor) -> Spans:
    """Each placeholder, for the next item of its modality."""
    waiting = {modality: [item for item in items if item.modality is modality] for modality in processor.marks}
    marks: Mapping[int, Modality] = {mark: modality for modality, mark in processor.marks.items()}
    places = np.flatnonzero(np.isin(given, list(marks)))
    for modality, mark in processor.marks.items():
        count = int((given == mark).sum())
        if count != len(waiting[modality]):
            raise RequestError(
                f"the prompt has {count} placeholder(s) of {modality} ({processor.shown[modality]}) and {len(waiting[modality])} "
                f"{modality}(s) are given; it must have one for each",
                param="prompt",
            )
    following = {modality: iter(of) for modality, of in waiting.items()}
    return [(int(place), int(place) + 1, next(following[marks[int(given[place])]])) for place in places]


def _standing(given: Int32s, items: Sequence[Prepared]) -> Spans | None:
    """The items where they stand in full already, one after the other; None where they do not."""
    spans: Spans = []
    at = 0
    for item in items:
        tokens = item.made.tokens
        if len(tokens) < 2:
            return None
        starts = np.flatnonzero(given[at : len(given) - len(tokens) + 1] == tokens[0]) + at
        start = next((int(s) for s in starts if np.array_equal(given[s : s + len(tokens)], tokens)), None)
        if start is None:
            return None
        at = start + len(tokens)
        spans.append((start, at, item))
    return spans
