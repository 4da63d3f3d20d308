"""Which of the planned shapes may be used already, while the programs of the others are still being compiled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from buckets.grid import LAUNCH_TOKENS, Grid
from buckets.shape import StepShape


def covering(grid: Grid) -> tuple[StepShape, ...]:
    """The fewest shapes that can run any work of `grid`: everything pads up to its largest decode and prefill bucket."""
    shapes = []
    if grid.prefill_buckets:
        shapes.append(StepShape(grid.prefill_buckets[0], None))
    if grid.decode_buckets:
        shapes.append(StepShape(None, grid.decode_buckets[-1]))
    return tuple(shapes)


class ReadyShapes:
    """The part of a planned grid whose programs exist. One thread adds shapes, another reads `grid` between its steps.

    Attributes:
        planned: the whole grid.
        grid: the ready shapes as a grid of their own: never changed, only replaced.
    """

    def __init__(self, planned: Grid, ready: Iterable[StepShape]) -> None:
        """`ready` must cover the grid (see `covering`).

        Raises:
            ValueError: it does not, so some work could not run.
        """
        self.planned = planned
        self._ready = set(ready)
        missing = [str(shape) for shape in covering(planned) if shape not in self._ready]
        if missing:
            raise ValueError(f"shapes that are ready from the start must include {', '.join(missing)}")
        self._wanted: Counter[StepShape] = Counter()
        self.grid = self._ready_grid()

    @property
    def complete(self) -> bool:
        """Whether every planned shape is ready."""
        return len(self.grid) == len(self.planned)

    def add(self, shape: StepShape) -> None:
        """The programs of `shape` exist now. A pair is used once both its buckets are ready alone too."""
        self._ready.add(shape)
        self.grid = self._ready_grid()

    def note(self, prefill_lengths: Iterable[int], decode_rows: int) -> None:
        """Take note of the rows of a step, and so of the shapes that would have suited them best."""
        lengths = list(prefill_lengths)
        if decode_rows:
            self._wanted[StepShape(None, self.planned.fit_decode(decode_rows))] += 1
        if lengths:
            fitting = [
                bucket
                for bucket in self.planned.prefill_buckets
                if bucket.tokens >= sum(-(-length // bucket.seq) * bucket.seq for length in lengths)
            ]
            if fitting:
                best = min(fitting, key=lambda bucket: bucket.tokens + bucket.batch + LAUNCH_TOKENS)
                self._wanted[StepShape(best, None)] += 1

    def most_wanted(self, leave_out: Iterable[StepShape] = ()) -> StepShape | None:
        """The shape to make ready next: the one that steps wanted most often, then the smallest; None when none is left.

        Small decode shapes come first of those that nobody asked for yet: most steps of a lightly loaded engine are theirs.
        """
        done = self._ready.union(leave_out)
        wanted = dict(self._wanted)  # in one go: another thread counts on
        left = [shape for shape in self.planned.shapes if shape not in done]
        return min(
            left, key=lambda shape: (-wanted.get(shape, 0), shape.prefill is not None, shape.tokens), default=None
        )

    def _ready_grid(self) -> Grid:
        def alone(shape: StepShape) -> list[StepShape]:
            halves = [StepShape(shape.prefill, None)] if shape.prefill is not None else []
            return [*halves, StepShape(None, shape.decode)] if shape.decode is not None else halves

        return Grid(shape for shape in self._ready if all(half in self._ready for half in alone(shape)))
