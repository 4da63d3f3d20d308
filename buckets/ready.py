"""Which of the planned buckets may be used already, while the programs of the others are still being compiled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from buckets.costs import Costs
from buckets.grid import Grid
from buckets.shape import Bucket


def covering(grid: Grid) -> tuple[Bucket, ...]:
    """The fewest buckets that can run any work of `grid`: the smallest with the most rows.

    It holds every sequence that decodes, and a prompt goes through it in pieces. The smallest, because all steps pay for its
    places until others are ready: one sequence, on the CPU, too.
    """
    return (
        min((bucket for bucket in grid.buckets if bucket.batch == grid.max_rows), key=lambda bucket: bucket.tokens),
    )


class ReadyShapes:
    """The part of a planned grid whose programs exist. One thread adds buckets, another reads `grid` between its steps.

    Attributes:
        planned: the whole grid.
        grid: the ready buckets as a grid of their own: never changed, only replaced.
    """

    def __init__(self, planned: Grid, ready: Iterable[Bucket]) -> None:
        """`ready` must cover the grid (see `covering`).

        Raises:
            ValueError: it does not, so some work could not run.
        """
        self.planned = planned
        self._ready = set(ready)
        missing = [str(bucket) for bucket in covering(planned) if bucket not in self._ready]
        if missing:
            raise ValueError(f"buckets that are ready from the start must include {', '.join(missing)}")
        self._wanted: Counter[Bucket] = Counter()
        self.grid = Grid(self._ready, planned.costs)

    @property
    def complete(self) -> bool:
        """Whether every planned bucket is ready."""
        return len(self.grid) == len(self.planned)

    def add(self, bucket: Bucket) -> None:
        """The programs of `bucket` exist now."""
        self._ready.add(bucket)
        self.grid = Grid(self._ready, self.planned.costs)

    def set_costs(self, costs: Costs) -> None:
        """From now on choose by another table, which names every planned bucket."""
        self.planned = self.planned.with_costs(costs)
        self.grid = Grid(self._ready, costs)

    def note(self, rows: int, tokens: int) -> None:
        """Take note of work that was there for a step, what had to wait included, and so of the bucket that suits it best."""
        single = min(rows, self.planned.max_rows) - 1
        rest = max(1, tokens - single)
        fill = self.planned.fill(single, single, [rest], max_tokens=self.planned.max_tokens)
        if fill is not None:
            self._wanted[fill.bucket] += 1

    def most_wanted(self, leave_out: Iterable[Bucket] = ()) -> Bucket | None:
        """The bucket to make ready next: the one that steps wanted most often, then the smallest; None when none is left.

        Small ones come first of those that nobody asked for yet: most steps of a lightly loaded engine are theirs.
        """
        done = self._ready.union(leave_out)
        wanted = dict(self._wanted)  # in one go: another thread counts on
        left = [bucket for bucket in self.planned.buckets if bucket not in done]
        return min(left, key=lambda bucket: (-wanted.get(bucket, 0), bucket.tokens), default=None)
