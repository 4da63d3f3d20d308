"""The finite set of shapes that exist, and how live work is fitted into them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from buckets.costs import Costs
from buckets.shape import Bucket

LAUNCH_TOKENS = 128
"""What a step costs beside its token places, in places, where nothing better is known: the weights are read once."""

WORTH = 1.05
"""How many times as many real tokens for its cost a larger bucket must have to be worth the longer step.

With 1 the same traffic takes longer, and times between tokens are three times as long (`benchmarks/replay.py`).
"""


class BucketOverflow(ValueError):  # noqa: N818 (named after what happened, as the rest of the tree)
    """More rows or tokens than any bucket holds."""


@dataclass(frozen=True, slots=True)
class Fill:
    """The bucket of a step and how many tokens of each waiting prompt go into it (0 for those left out)."""

    bucket: Bucket
    takes: tuple[int, ...]


class Grid:
    """Every planned bucket, and what a step of it costs.

    Attributes:
        buckets: largest first (the order to compile them in: memory failures come at once).
        max_rows: most rows of a bucket.
        max_tokens: most token places of a bucket.
        costs: of every bucket, in one unit: seconds, or token places where no table was given.
    """

    def __init__(self, buckets: Iterable[Bucket], costs: Costs | None = None) -> None:
        """`costs` may name more buckets than the grid has.

        Raises:
            ValueError: no bucket, or one whose cost is missing or not positive.
        """
        self.buckets: tuple[Bucket, ...] = tuple(sorted(set(buckets), key=_size, reverse=True))
        if not self.buckets:
            raise ValueError("a grid needs at least one bucket")
        if costs is None:
            costs = {bucket: float(bucket.tokens + LAUNCH_TOKENS) for bucket in self.buckets}
        unknown = [str(bucket) for bucket in self.buckets if not costs.get(bucket, 0) > 0]
        if unknown:
            raise ValueError(f"every bucket needs a cost above 0; there is none for {', '.join(unknown)}")
        self.max_rows = max(bucket.batch for bucket in self.buckets)
        self.max_tokens = self.buckets[0].tokens
        self.costs: Costs = {bucket: costs[bucket] for bucket in self.buckets}
        self._smallest_first = [
            (bucket, bucket.batch, bucket.tokens, self.costs[bucket]) for bucket in reversed(self.buckets)
        ]

    def __len__(self) -> int:
        return len(self.buckets)

    def __repr__(self) -> str:
        return f"Grid({', '.join(map(str, self.buckets))})"

    def with_costs(self, costs: Costs) -> Grid:
        """The same buckets under another table."""
        return Grid(self.buckets, costs)

    def fill(
        self, rows: int, tokens: int, waiting: Sequence[int], *, max_tokens: int, whole: Sequence[bool] = ()
    ) -> Fill | None:
        """Choose the bucket of a step for what must go in and for the prompts that wait, and fill it.

        The smallest wins of those with the most real tokens for their cost, or nearly so (`WORTH`). So while enough work waits a
        bucket is filled exactly, a little work is padded up rather than spread over many small steps, and a step is no longer
        than it has to be: the next one has places too, which are cheap as it reads the weights anyway. With buckets 4x64 and
        4x16, costs of 384 and 192, and one row of one token that must go in:

            waiting 300        4x64 takes 255 and is full; 45 wait for the next step
            waiting 200        4x64 takes all: 201 of 256 places in one step beat 4 full steps of 64
            waiting 70         4x16 takes 63 and is full; 7 wait

        Prompts go in in order, each as one row and with all of its tokens that fit. As long as one waits, a bucket that takes
        none is chosen only if no other holds what must go in.

        Args:
            rows: rows that must go in: sequences that decode.
            tokens: tokens of these rows in all.
            waiting: tokens left of each waiting prompt, at least 1, the most urgent first.
            max_tokens: most real tokens of the step, those that must go in included; they go in even if they are more.
            whole: which prompts go in with all of their tokens or with none; left out, none of them has to.

        Returns:
            None when there is nothing to do, or nothing but prompts and `max_tokens` is below 1.

        Raises:
            BucketOverflow: no bucket holds what must go in.
        """
        most = min(max_tokens, self.max_tokens) - tokens
        ends: list[int] = []  # tokens of the first 1, 2, ... prompts, as far as they can matter
        if most > 0:
            total = 0
            for left in islice(waiting, max(0, self.max_rows - rows)):
                total += left
                ends.append(total)
                if total >= most:
                    break
        options: list[tuple[float, int, Bucket]] = []
        idle, idle_cost = None, 0.0
        best = 0.0
        for bucket, batch, places, cost in self._smallest_first:
            if batch < rows or places < tokens:
                continue
            prompts = min(batch - rows, len(ends))
            take = min(ends[prompts - 1], places - tokens, most) if prompts else 0
            if whole and take and whole[last := bisect_left(ends, take)]:
                take = take if ends[last] == take else ends[last - 1] if last else 0
            if take:
                score = (tokens + take) / cost
                options.append((score, take, bucket))
                best = max(best, score)
            elif idle is None or cost < idle_cost:
                idle, idle_cost = bucket, cost
        if not options:
            if idle is None:
                raise BucketOverflow(
                    f"{rows} rows with {tokens} tokens fit none of {', '.join(map(str, self.buckets))}; "
                    "schedule fewer, or plan the grid for more sequences"
                )
            return Fill(idle, (0,) * len(waiting)) if rows else None
        taken, chosen = next((take, bucket) for score, take, bucket in options if score * WORTH >= best)
        takes = [0] * len(waiting)
        last = bisect_left(ends, taken)
        takes[:last] = waiting[:last]
        takes[last] = waiting[last] - (ends[last] - taken)
        return Fill(chosen, tuple(takes))


def _size(bucket: Bucket) -> tuple[int, int]:
    return (bucket.tokens, bucket.batch)
