"""The finite set of shapes that exist, and how live work is fitted into them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from buckets.shape import Bucket, StepShape

LAUNCH_TOKENS = 128
"""What a launch costs beside its token places, in places: the weights are read once, whatever the bucket."""

ROW_TOKENS = 1
"""What a row costs beside its token places, in places: it reads the sequence's keys and values once, however short it is."""


class BucketOverflow(ValueError):  # noqa: N818 (named after what happened, as the rest of the tree)
    """More rows than the largest bucket holds."""


@dataclass(frozen=True, slots=True)
class Fill:
    """A prefill bucket and how many tokens of each waiting prompt go into it (0 for those left out)."""

    bucket: Bucket
    takes: tuple[int, ...]


class Grid:
    """Every planned step shape.

    Pure prefill and pure decode shapes always exist for the buckets of the grid; a pair that is not planned is run as two
    launches.

    Attributes:
        shapes: all shapes, largest first (the order to compile them in: memory failures come at once).
        prefill_buckets: the distinct prefill buckets, largest first.
        decode_buckets: the distinct decode buckets, smallest first.
        max_decode_rows: rows of the largest decode bucket, 0 without one.
        max_prefill_tokens: token places of the largest prefill bucket, 0 without one.
    """

    def __init__(self, shapes: Iterable[StepShape]) -> None:
        given = set(shapes)
        if not given:
            raise ValueError("a grid needs at least one step shape")
        prefill = {shape.prefill for shape in given if shape.prefill is not None}
        decode = {shape.decode for shape in given if shape.decode is not None}
        given |= {StepShape(bucket, None) for bucket in prefill} | {StepShape(None, bucket) for bucket in decode}
        self.shapes: tuple[StepShape, ...] = tuple(sorted(given, key=_size, reverse=True))
        self.prefill_buckets: tuple[Bucket, ...] = tuple(
            sorted(prefill, key=lambda bucket: (bucket.tokens, bucket.seq), reverse=True)
        )
        self.decode_buckets: tuple[Bucket, ...] = tuple(sorted(decode))
        self.max_decode_rows = max((bucket.batch for bucket in decode), default=0)
        self.max_prefill_tokens = max((bucket.tokens for bucket in prefill), default=0)
        self._planned = frozenset(given)
        self._costs = [bucket.tokens + ROW_TOKENS * bucket.batch + LAUNCH_TOKENS for bucket in self.prefill_buckets]
        self._decode_rows = [bucket.batch for bucket in self.decode_buckets]

    def __len__(self) -> int:
        return len(self.shapes)

    def __repr__(self) -> str:
        return f"Grid({', '.join(map(str, self.shapes))})"

    def has(self, shape: StepShape) -> bool:
        """Whether `shape` is planned; a pair that is not is run as two launches."""
        return shape in self._planned

    def fit_decode(self, rows: int) -> Bucket:
        """The smallest decode bucket that holds `rows`.

        Raises:
            BucketOverflow: more rows than the largest decode bucket has.
        """
        index = bisect_left(self._decode_rows, rows)
        if index == len(self._decode_rows):
            raise BucketOverflow(
                f"{rows} decode rows do not fit the largest decode bucket, {self.max_decode_rows} rows; "
                "schedule fewer, or plan the grid for more sequences"
            )
        return self.decode_buckets[index]

    def fill_prefill(self, lengths: Sequence[int], *, max_tokens: int, whole_rows: bool = False) -> Fill | None:
        """Choose a prefill bucket for prompts with `lengths` tokens left, the most urgent first, and fill it in that order.

        The bucket with the most real tokens for its cost wins, which is its token places and what a launch and its rows cost
        besides. So while enough work waits a bucket is filled exactly, and a little work is padded up rather than spread over
        many small steps. With buckets 4x64 and 1x64:

            waiting 300        4x64 takes 256 and is full; 44 wait for the next step
            waiting 200        4x64 takes all: 200 of 256 places in one step beat 3 full steps of 64
            waiting 70         1x64 takes 64 and is full; 6 wait

        A prompt is cut at a row's end wherever possible, so that its next row starts full.

        Args:
            lengths: tokens left of each waiting prompt; prompts with none are passed over.
            max_tokens: most real tokens to take.
            whole_rows: cut prompts at row ends only, even if that leaves `max_tokens` unused (deterministic mode).

        Returns:
            None when nothing waits, or `max_tokens` is too small to take anything.
        """
        if max_tokens < 1:
            return None
        best_score, best = 0.0, None
        for bucket, cost in zip(self.prefill_buckets, self._costs, strict=True):
            takes = _fill(bucket, lengths, max_tokens=max_tokens, whole_rows=whole_rows)
            score = sum(takes) / cost
            if score > best_score:
                best_score, best = score, (bucket, takes)
        if best is None:
            return None
        bucket, takes = best
        return Fill(bucket, (*takes, *(0,) * (len(lengths) - len(takes))))


def _fill(bucket: Bucket, lengths: Sequence[int], *, max_tokens: int, whole_rows: bool) -> list[int]:
    """Tokens of each prompt that go into `bucket`, in order; prompts past the end of the list get none."""
    seq, rows, tokens = bucket.seq, bucket.batch, max_tokens
    takes: list[int] = []
    for length in lengths:
        take = min(length, rows * seq, tokens)
        if take < length and (take >= seq or whole_rows or any(takes)):
            take -= take % seq
        takes.append(take)
        tokens -= take
        rows -= -(-take // seq)
        if take < length or rows == 0 or tokens == 0:
            break
    return takes


def _size(shape: StepShape) -> tuple[int, int, int, int]:
    prefill, decode = shape.prefill, shape.decode
    return (shape.tokens, shape.rows, prefill.tokens if prefill else 0, decode.batch if decode else 0)
