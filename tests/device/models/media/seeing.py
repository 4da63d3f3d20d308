"""A `PagedModel` whose prompts show something: what they show is encoded first, by the programs that serve."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from buckets import Bucket
from jaxengine.contract.media import Encoding, MediaItem, SlotMedia, ToEncode
from tests.device.models.media.cases import Fixture, Prompt
from tests.device.models.paged import EMBEDDING_PAGE, EMBEDDING_PAGES, PagedModel

LARGE, SMALL = Bucket(6, 32), Bucket(2, 16)


class SeeingModel(PagedModel):
    """Its encoder has two shapes."""

    def __init__(self, fixture: Fixture, **options: Any) -> None:
        super().__init__(fixture.config, fixture.tensors, encoders=(LARGE, SMALL), **options)
        self._encodings = 0

    def show(self, prompts: Sequence[Prompt], *, together: bool = True) -> list[SlotMedia | None]:
        """Encode what prompts show, as many items at once as fit the larger shape or each alone in the smallest that does.

        What was in the pool before is written over, by other items in other places.
        """
        values = self.config.tower.patch_values
        random = np.random.default_rng(self._encodings)
        free = random.permutation(EMBEDDING_PAGES).astype(np.int32).tolist()
        waiting: list[ToEncode] = []
        shown: list[SlotMedia | None] = []
        for prompt in prompts:
            items = prompt.items(values)
            given = []
            for item in items:
                pages = np.array([free.pop() for _ in range(-(-item.num_embeddings // EMBEDDING_PAGE))], np.int32)
                waiting.append(ToEncode(item, pages))
                rows = (pages[:, None] * EMBEDDING_PAGE + np.arange(EMBEDDING_PAGE)).ravel()
                given.append(rows[: item.num_embeddings])
            if not items:
                shown.append(None)
                continue
            shown.append(
                SlotMedia(
                    places=np.concatenate([item.places for item in items]),
                    embeddings=np.concatenate(given).astype(np.int32),
                    spans=np.array(prompt.spans, np.int32).reshape(-1, 2),
                    axes=prompt.axes,
                    offset=prompt.offset,
                )
            )
        while waiting:
            count = 1
            while together and count < len(waiting) and fits(LARGE, [one.item for one in waiting[: count + 1]]):
                count += 1
            taken, waiting = waiting[:count], waiting[count:]
            bucket = SMALL if fits(SMALL, [one.item for one in taken]) and not together else LARGE
            self._encodings += 1
            self.runner.encode(Encoding(self._encodings, bucket, tuple(taken)))
        return shown

    def pool(self) -> np.ndarray:
        """The embeddings on the device."""
        return np.asarray(self.runner.launcher.embeddings.array)


def fits(bucket: Bucket, items: Sequence[MediaItem]) -> bool:
    patches, rows = sum(len(item.patches) for item in items), sum(item.grid[0] for item in items)
    return patches <= bucket.tokens and rows <= bucket.batch
