"""Static shapes: which (batch, seq) buckets exist and which one a set of rows takes. Standard library only."""

from buckets.cut import cut_rows
from buckets.grid import BucketOverflow, Fill, Grid
from buckets.limits import Limits
from buckets.planners import PLANNERS, plan
from buckets.ranges import exponential_range, linear_range, pad_to_range
from buckets.ready import ReadyShapes, covering
from buckets.rows import plan_deterministic
from buckets.shape import Bucket, StepShape

__all__ = [
    "PLANNERS",
    "Bucket",
    "BucketOverflow",
    "Fill",
    "Grid",
    "Limits",
    "ReadyShapes",
    "StepShape",
    "covering",
    "cut_rows",
    "exponential_range",
    "linear_range",
    "pad_to_range",
    "plan",
    "plan_deterministic",
]
