"""The shapes of device steps."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Bucket:
    """The padded shape of a set of rows: `batch` rows of `seq` token places each. `seq == 1` is decode."""

    batch: int
    seq: int

    def __post_init__(self) -> None:
        if self.batch < 1 or self.seq < 1:
            raise ValueError(f"a bucket needs at least one row of one token, got batch={self.batch} seq={self.seq}")

    @property
    def tokens(self) -> int:
        """Token places, padding included."""
        return self.batch * self.seq

    def __str__(self) -> str:
        return f"{self.batch}x{self.seq}"


@dataclass(frozen=True, slots=True)
class StepShape:
    """What one device step runs: a prefill bucket, a decode bucket, or both in one launch."""

    prefill: Bucket | None
    decode: Bucket | None

    def __post_init__(self) -> None:
        if self.prefill is None and self.decode is None:
            raise ValueError("a step shape needs a prefill bucket, a decode bucket or both")
        if self.decode is not None and self.decode.seq != 1:
            raise ValueError(f"a decode bucket has seq 1, got {self.decode}")

    @property
    def rows(self) -> int:
        """Row places of both buckets together."""
        return sum(bucket.batch for bucket in (self.prefill, self.decode) if bucket is not None)

    @property
    def tokens(self) -> int:
        """Token places of both buckets together, padding included."""
        return sum(bucket.tokens for bucket in (self.prefill, self.decode) if bucket is not None)

    def __str__(self) -> str:
        parts = []
        if self.prefill is not None:
            parts.append(f"prefill {self.prefill}")
        if self.decode is not None:
            parts.append(f"decode {self.decode.batch}")
        return " + ".join(parts)
