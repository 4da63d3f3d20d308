"""Which launches a step's rows take: ours, those of other engines, and of this one before its rows became flat.

A rule is a `Grid` that the real scheduler fills, and the launches of what it chose. All share the scheduler, the page accounts
and the cost of a launch, so only shapes differ.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import islice

from buckets import Bucket, Fill, Grid, Limits, plan
from jaxengine.bench.clock import Launch
from jaxengine.bench.scheduled import Rows


class _Capacity(Grid):
    """A grid that promises `rows` sequences and `tokens` tokens to the scheduler, and fills by a rule of its own."""

    def __init__(self, rows: int, tokens: int) -> None:
        super().__init__([Bucket(rows, -(-tokens // rows))])
        self.bucket = self.buckets[0]
        self.limit = tokens

    def fill(
        self, rows: int, tokens: int, waiting: Sequence[int], *, max_tokens: int, whole: Sequence[bool] = ()
    ) -> Fill | None:
        assert not any(whole), "no prompt of a trace has to go in at once"
        room = min(max_tokens, self.limit) - tokens
        takes = self.takes(islice(waiting, self.bucket.batch - rows), room) if room > 0 else ()
        return Fill(self.bucket, (*takes, *(0,) * (len(waiting) - len(takes)))) if rows or takes else None

    def takes(self, waiting: Iterable[int], room: int) -> tuple[int, ...]:
        """As much as there is room for, in order."""
        taken: list[int] = []
        for left in waiting:
            taken.append(min(left, room))
            room -= taken[-1]
            if not room:
                break
        return tuple(taken)


class PaddedUp:
    """tpu-inference: as much as the token budget allows, padded up to the next power of two from 16 on."""

    name = "tpu-inference"
    in_flight = 2

    def __init__(self, limits: Limits) -> None:
        self.ladder = powers(16, limits.max_num_batched_tokens)
        self.programs = len(self.ladder)
        self.grid: Grid = _Capacity(limits.max_rows, limits.max_num_batched_tokens)

    def launches(self, work: Rows) -> Sequence[Launch]:
        tokens = work.decoding + sum(count for _, count in work.prompts)
        return (Launch(up(self.ladder, tokens), work.context, work.prompts),)


class OnePrompt:
    """Gaudi's plugin: sequences that decode in one launch, then every prompt in one of its own, each padded by the linear rule.

    Their buckets also have a context axis, which multiplies the programs.
    """

    name = "gaudi"
    in_flight = 2

    def __init__(self, limits: Limits) -> None:
        grid = plan("linear", limits)
        self.prompts = sorted({bucket.seq for bucket in grid.buckets if bucket.batch == 1 and bucket.seq > 1})
        self.decode = sorted({bucket.batch for bucket in grid.buckets if bucket.seq == 1})
        self.programs = len(self.prompts) + len(self.decode)
        self.grid: Grid = _Capacity(limits.max_rows, limits.max_num_batched_tokens)

    def launches(self, work: Rows) -> Sequence[Launch]:
        decode = [Launch(up(self.decode, work.decoding), work.context, ())] if work.decoding else []
        return [*decode, *(Launch(up(self.prompts, count), 0, ((start, count),)) for start, count in work.prompts)]


class TwoLaunches(_Capacity):
    """This engine at 0.1: sequences that decode in one launch, prompts in another, cut into rows of 64 or 16 places.

    The bucket with the most real tokens for its places, its rows and 128 more wins; a prompt is cut at a row's end.
    """

    name = "two launches"
    in_flight = 1

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits.max_rows, limits.max_num_batched_tokens)
        top = -(-limits.max_num_batched_tokens // 64)
        bulk = {
            top,
            *(rows for rows in powers(16, top) if rows < top),
            *([top * 7 // 8] if limits.max_rows * 16 >= top * 64 else []),
        }
        short = {places // 16 for places in (512, 128) if places < 64 * top}
        self.rectangles = sorted(
            [*(Bucket(rows, 64) for rows in bulk), *(Bucket(rows, 16) for rows in short)],
            key=lambda bucket: -bucket.tokens,
        )
        self.decode = powers(8, limits.max_rows)
        self.programs = len(self.rectangles) + len(self.decode)
        self.grid: Grid = self

    def takes(self, waiting: Iterable[int], room: int) -> tuple[int, ...]:
        lefts: list[int] = []
        for left in waiting:
            lefts.append(left)
            if sum(lefts) >= room:
                break
        return max(((score, takes) for score, takes, _ in self._options(lefts, room)), default=(0, ()))[1]

    def launches(self, work: Rows) -> Sequence[Launch]:
        launches = [Launch(up(self.decode, work.decoding), work.context, ())] if work.decoding else []
        if work.prompts:
            counts = [count for _, count in work.prompts]
            _, _, bucket = max(option for option in self._options(counts, sum(counts)) if option[1] == tuple(counts))
            launches.append(Launch(bucket.tokens, 0, work.prompts, tile=bucket.seq))
        return launches

    def _options(self, lefts: Sequence[int], room: int) -> Iterable[tuple[float, tuple[int, ...], Bucket]]:
        for bucket in self.rectangles:
            seq, rows, tokens = bucket.seq, bucket.batch, room
            takes: list[int] = []
            for left in lefts:
                take = min(left, rows * seq, tokens)
                if take < left and (take >= seq or any(takes)):
                    take -= take % seq
                if not take:
                    break
                takes.append(take)
                tokens -= take
                rows -= -(-take // seq)
                if take < left or not rows:
                    break
            yield sum(takes) / (bucket.tokens + bucket.batch + 128), tuple(takes), bucket


def powers(first: int, last: int) -> list[int]:
    """`first`, its doubles, and `last`."""
    values = [last]
    while first < last:
        values.append(first)
        first *= 2
    return sorted(values)


def up(ladder: Sequence[int], value: int) -> int:
    """The least of `ladder` that is not below `value`."""
    return ladder[bisect_left(ladder, value)]
