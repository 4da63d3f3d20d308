"""Static shapes: which (batch, seq) buckets exist and which one a step takes. Standard library only."""

from buckets.costs import corrected, estimated
from buckets.deterministic import plan_deterministic
from buckets.fitted import candidates, fitted
from buckets.grid import BucketOverflow, Fill, Grid
from buckets.limits import Limits
from buckets.planners import OPTIONS, PLANNERS, plan
from buckets.ranges import exponential_range, linear_range, pad_to_range
from buckets.ready import ReadyShapes, covering
from buckets.shape import Bucket

__all__ = [
    "OPTIONS",
    "PLANNERS",
    "Bucket",
    "BucketOverflow",
    "Fill",
    "Grid",
    "Limits",
    "ReadyShapes",
    "candidates",
    "corrected",
    "covering",
    "estimated",
    "exponential_range",
    "fitted",
    "linear_range",
    "pad_to_range",
    "plan",
    "plan_deterministic",
]
