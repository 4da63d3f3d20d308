"""What scheduling has to know of a model's caches."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheTraits:
    """What follows for scheduling from what a model's layers keep of a sequence.

    `rewinds`: tokens that were written can be forgotten, as those behind a wrong draft. A prompt that is cut into rows at
    multiples of `cut` positions is computed in the same order as whole. Pages do both, cut anywhere.
    """

    rewinds: bool = True
    cut: int = 1


PAGES_ONLY = CacheTraits()
