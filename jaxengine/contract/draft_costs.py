"""What drafts take of the device beside a step without them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from buckets import Bucket


@dataclass(frozen=True)
class DraftCosts:
    """Seconds: `draft_s` of putting rows where their sequences end and of drafting behind a step, by its bucket; `sample_s` of
    sampling so many tokens. What a step of a bucket takes has sampling of a token for each of its rows in it."""

    draft_s: Mapping[Bucket, float] = field(default_factory=dict)
    sample_s: Mapping[int, float] = field(default_factory=dict)

    def drafting(self, bucket: Bucket) -> float:
        """Of a bucket that was not measured, what the measured one nearest in token places takes."""
        if not self.draft_s:
            return 0.0
        return self.draft_s[min(self.draft_s, key=lambda known: (known != bucket, abs(known.tokens - bucket.tokens)))]

    def sampling(self, tokens: int) -> float:
        """By the smallest program for so many, or else the largest."""
        counts = sorted(self.sample_s)
        if not counts:
            return 0.0
        return self.sample_s[next((count for count in counts if count >= tokens), counts[-1])]
