"""Items that prompts show, for tests without pictures: a digest, patches of nothing, and places."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from buckets import Bucket
from jaxengine.contract.media import MediaFacts, MediaItem, Modality, PromptMedia
from jaxengine.contract.request import Request

PLACEHOLDER = 94
"""The token at the places of items."""
BUCKETS = (Bucket(4, 16), Bucket(4, 8), Bucket(2, 4))
"""Launches of encoders: of 64, 32 and 8 patches."""


def make_facts(
    num_pages: int = 40,
    *,
    page_size: int = 2,
    buckets: Sequence[Bucket] = BUCKETS,
    sight: bool = False,
    crosses: bool = False,
) -> MediaFacts:
    """Of an engine that sees."""
    return MediaFacts(
        modalities=(Modality.IMAGE,),
        buckets=tuple(buckets),
        num_pages=num_pages,
        page_size=page_size,
        sight=sight,
        crosses=crosses,
    )


def make_item(
    name: str, places: Iterable[int] = (), *, patches: int | None = None, rows: int = 1, unplaced: int = 0
) -> MediaItem:
    """The item of a name, rows and number of embeddings: no other has its digest."""
    where = np.asarray([*places], np.int32)
    count = max(1, len(where) + unplaced) * rows if patches is None else patches
    return MediaItem(
        digest=hashlib.blake2b(f"{name} {rows} {count} {len(where)} {unplaced}".encode(), digest_size=32).digest(),
        modality=Modality.IMAGE,
        patches=np.zeros((count, 1), np.float32),
        grid=(rows, 1, count // rows),
        places=where,
        unplaced=unplaced,
    )


def showing(request: Request, *parts: int | tuple[str, int]) -> Request:
    """The request with another prompt: of each part tokens, or the name of a picture and how many places it has.

    A number is a token; `("cat", 4)` are four places of the picture of a cat.
    """
    tokens: list[int] = []
    items = []
    for part in parts:
        if isinstance(part, tuple):
            name, count = part
            items.append(make_item(name, range(len(tokens), len(tokens) + count)))
            tokens += [PLACEHOLDER] * count
        else:
            tokens.append(part)
    return replace(request, prompt_token_ids=tuple(tokens), media=PromptMedia(items=tuple(items)))


def hearing(request: Request, name: str, count: int) -> Request:
    """The request with a sound that cross attention reads, of so many embeddings."""
    return replace(request, media=PromptMedia(items=(make_item(name, unplaced=count),)))
