"""The shapes of device steps."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Bucket:
    """The padded shape of a step: at most `batch` rows, and `batch x seq` token places that they share.

    A row is any run of new tokens of one sequence: the one of a sequence that decodes, a prompt's next thousand.
    """

    batch: int
    seq: int

    def __post_init__(self) -> None:
        if self.batch < 1 or self.seq < 1:
            raise ValueError(f"a bucket needs at least one row of one token, got batch={self.batch} seq={self.seq}")

    def __reduce__(self) -> tuple[type[Bucket], tuple[int, int]]:
        """Pickled by its numbers: every step's statistics name all that were used."""
        return Bucket, (self.batch, self.seq)

    @property
    def tokens(self) -> int:
        """Token places, padding included."""
        return self.batch * self.seq

    def __str__(self) -> str:
        return f"{self.batch}x{self.seq}"
