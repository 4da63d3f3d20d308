"""What an engine has for a model that sees or hears, as its programs follow from it."""

from __future__ import annotations

from dataclasses import dataclass

from buckets import Bucket
from jaxengine.device.models.interface import MediaTraits
from jaxengine.device.runtime.slot_media import StepMedia


@dataclass(frozen=True, kw_only=True)
class MediaSpace:
    """What a model that sees or hears has for it: the shapes of its encoder's launches, in rows and patches, the largest first,
    and a pool of `num_pages` pages of `page_size` embeddings. Prompts may give embeddings themselves where it `takes_given`."""

    traits: MediaTraits
    buckets: tuple[Bucket, ...]
    num_pages: int
    page_size: int
    takes_given: bool = False

    @property
    def of_step(self) -> StepMedia:
        """What steps are told of their places."""
        crossed = 0
        if self.traits.crossed is not None:
            crossed = -(-self.traits.crossed.places // self.page_size)
        return StepMedia(self.traits.num_axes, self.traits.sight, crossed)
