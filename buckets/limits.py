"""What a grid is planned for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The bounds of the work that a grid must hold.

    `free_tokens` are the token places up to which a step lasts about as long as with one, being bound by reading the weights:
    there the default planner takes few.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    page_size: int
    free_tokens: int = 1

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "page_size", "free_tokens"):
            value = getattr(self, name)
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")

    @property
    def block(self) -> int:
        """Tokens by which the Gaudi planners step: 128, the block that their documents recommend, or a larger page."""
        return min(max(128, self.page_size), self.max_model_len)

    @property
    def max_rows(self) -> int:
        """Most sequences of one step: every bucket list holds so many that decode."""
        return min(self.max_num_seqs, self.max_num_batched_tokens)

    @property
    def max_tokens(self) -> int:
        """Most tokens that can be computed in one step."""
        return min(self.max_num_batched_tokens, self.max_num_seqs * self.max_model_len)
