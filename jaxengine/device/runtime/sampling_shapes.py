"""The ways in which the steps of an engine sample: of how many rows, by which variant, and by which programs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from jaxengine.device.sampling import Variant

SAMPLED_ROWS = {"cpu": ((1, 8), 2), "gpu": ((8,), 2), "tpu": ((16,), 8)}
"""The least numbers of sampled rows, and the factor to the next. A row that is not sampled costs a projection to logits. A TPU
takes the same time for up to some 256 of them: it reads the matrix. On a CPU Qwen3-0.6B's takes 5 ms in int8 with one row, and 7
with eight."""


@dataclass(frozen=True)
class SampleShape:
    """How a step samples: `rows` R, the variant, and whether rows go through adapters of the head."""

    rows: int
    variant: Variant
    adapters: bool = False

    @property
    def name(self) -> str:
        return f"sample {self.rows} {self.variant.value}{' adapters' if self.adapters else ''}"

    @property
    def logits_name(self) -> str:
        return f"logits {self.rows}{' adapters' if self.adapters else ''}"

    @property
    def cost(self) -> int:
        """Orders compilation: variants that do more compile longer."""
        return self.rows * (1 + list(Variant).index(self.variant))


@dataclass(frozen=True, kw_only=True)
class SamplingShapes:
    """Those of one engine, which samples at most `num_tokens` a step, has `num_buckets`, and a head with adapters or not.

    `by_row`: sampling goes row by row and takes longer to compile than a layer, as on a CPU.
    """

    platform: str
    num_tokens: int
    num_buckets: int
    has_logits: bool
    adapters: bool
    by_row: bool

    @cached_property
    def kept(self) -> int:
        """K: the places of a step whose hidden states are kept, whatever its bucket."""
        (least, *_), _ = SAMPLED_ROWS[self.platform]
        return max(least, self.num_tokens)

    @cached_property
    def row_counts(self) -> tuple[int, ...]:
        """The numbers of sampled rows that there are programs for, smallest first; the last is K.

        Beside a single bucket K is the only one: a position's logits come from one program then, whatever its company.
        """
        least, factor = SAMPLED_ROWS[self.platform]
        counts = list(least)
        if self.num_buckets == 1 or self.kept < counts[-1]:
            return (self.kept,)
        while counts[-1] < self.kept:
            counts.append(counts[-1] * factor)
        return (*(rows for rows in counts if rows < self.kept), self.kept)

    def rows_for(self, num_rows: int) -> int:
        """The least row count R that holds so many rows."""
        return next(count for count in self.row_counts if count >= num_rows)

    @cached_property
    def shapes(self) -> tuple[SampleShape, ...]:
        """Every way to sample: each variant per row count, where the head has adapters for steps with such too.

        None for a model without logits.
        """
        if not self.has_logits:
            return ()
        return tuple(
            SampleShape(rows, variant, adapters)
            for adapters in ((False, True) if self.adapters else (False,))
            for rows in self.row_counts
            for variant in Variant
        )

    def logits_apart(self, shape: SampleShape) -> bool:
        """Whether `logits_name` makes the logits and one program samples whatever number of rows: what can do all, `by_row`."""
        return self.by_row and shape.variant is Variant.FULL

    def names(self, shape: SampleShape) -> tuple[str, ...]:
        """The programs that sample, in the order in which they are called."""
        return (shape.logits_name, f"sample {shape.variant.value}") if self.logits_apart(shape) else (shape.name,)

    @cached_property
    def logit_rows(self) -> int:
        """The rows of logits that wait in the slots between two programs; none where each shape is one."""
        return self.kept if any(map(self.logits_apart, self.shapes)) else 0
