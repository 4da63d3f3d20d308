"""The shapes of an engine, from its options."""

from __future__ import annotations

from buckets import OPTIONS, Bucket, Grid, Limits, plan, plan_deterministic
from jaxengine.errors import ConfigError
from jaxengine.options.config import EngineConfig
from jaxengine.startup.limits import EngineLimits
from jaxengine.startup.model_plan import ModelPlan
from jaxengine.startup.roofline import NOMINAL


def plan_grid(config: EngineConfig, limits: EngineLimits, model: ModelPlan) -> Grid:
    """The shapes that will exist, and what a step of each should cost on the model's devices.

    Raises:
        ConfigError: ranges or buckets that the planner cannot use.
    """
    options, bounds = config.compilation, bounds_of(limits)
    names = sorted(frozenset().union(*OPTIONS.values()))
    given = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    if config.scheduler.deterministic:
        if given:
            raise ConfigError(
                f"{', '.join(given)}: deterministic mode has one shape of its own; leave out one or the other"
            )
        cut = model.traits.cut
        return costed(plan_deterministic(bounds, least_share=cut + 1 if cut > 1 else 1), limits, model)
    try:
        grid = plan(options.bucket_planner, bounds, **given)
    except ValueError as error:
        raise ConfigError(f"bucket_planner {options.bucket_planner}: {error}") from error
    return costed(grid, limits, model)


def bounds_of(limits: EngineLimits) -> Limits:
    """What planners have to know of an engine."""
    return Limits(
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        max_model_len=limits.max_model_len,
        page_size=limits.page_size,
        free_tokens=limits.free_tokens,
    )


def costed(grid: Grid, limits: EngineLimits, model: ModelPlan) -> Grid:
    """The same buckets with what a step of each should cost on the model's devices, in seconds."""
    return grid.with_costs({bucket: _seconds(bucket, limits, model) for bucket in grid.buckets})


def _seconds(bucket: Bucket, limits: EngineLimits, model: ModelPlan) -> float:
    """The least time of a step: reading the weights, or computing all places; and the same for sampling all rows."""
    roofline = model.roofline(model.target.chip or NOMINAL[model.platform])
    passing, _ = roofline.floor(bucket.tokens, sampling=False)
    sampling, _ = roofline.floor(min(bucket.batch, limits.max_num_seqs), sampling=True)
    return passing + sampling
