"""What bounds a step: the scheduler's own view of the engine's limits."""

from __future__ import annotations

from dataclasses import dataclass

from buckets import Grid
from jaxengine.contract.cache_traits import PAGES_ONLY, CacheTraits
from jaxengine.errors import ConfigError
from jaxengine.host.scheduler.policy import URGENCY
from jaxengine.options.speculation import DraftSpeculation, Speculation

LEAST_SHARE = 3
"""In deterministic mode a prompt gets so many tokens of a step, or it might wait for ever: two of three would leave one alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerLimits:
    """Sizes in sequences and tokens, the order of requests, and who proposes drafts.

    In deterministic mode prompts are cut at multiples of `cache.cut` positions, and nowhere else.

    Raises:
        ConfigError: limits that contradict each other.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    long_prefill_token_threshold: int = 0
    scheduling_policy: str = "fcfs"
    deterministic: bool = False
    speculation: Speculation | None = None
    cache: CacheTraits = PAGES_ONLY

    @property
    def num_drafts(self) -> int:
        """The most drafts of a row."""
        return 0 if self.speculation is None else self.speculation.num_tokens

    @property
    def num_device_drafts(self) -> int:
        """The drafts that the device makes for a row, 0 where it makes none."""
        return self.num_drafts if isinstance(self.speculation, DraftSpeculation) else 0

    @property
    def max_kept(self) -> int:
        """Places of a step that something may be asked of: one for every sequence, and its drafts."""
        return self.max_num_seqs * (1 + self.num_drafts)

    @property
    def least_share(self) -> int:
        """Tokens of a step that a prompt gets in deterministic mode, however many decode, unless it has fewer left."""
        return max(LEAST_SHARE, self.cache.cut + 1)

    @property
    def prompt_threshold(self) -> int:
        """Most tokens of a step for one of several prompts; 0 is no limit."""
        threshold = self.long_prefill_token_threshold
        return max(threshold, self.least_share) if threshold and self.deterministic else threshold

    def budget(self, *, beside: int) -> int:
        """Most tokens of a step of which prompts go on beside so many tokens of others."""
        most = self.max_num_batched_tokens
        return max(most, beside + self.least_share) if self.deterministic else most

    def prompt_take(self, left: int, take: int) -> int:
        """How many of the `left` tokens of a prompt go into a step that has room for `take` of them.

        In deterministic mode none, or two at least, and none or two at least stay behind: one alone is another kernel's. What
        does not take all of them takes a multiple of `cache.cut`.
        """
        if take < left and self.deterministic:
            cut = self.cache.cut
            take -= take % cut
            take -= cut * (left - take == 1)
            return take if take > 1 else 0
        return take

    def check_grid(self, grid: Grid) -> None:
        """Refuse shapes that cannot run what the limits allow.

        Raises:
            ConfigError: too few rows, or in deterministic mode more than one shape.
        """
        if grid.max_rows < self.max_num_seqs:
            raise ConfigError(
                f"the largest bucket has {grid.max_rows} rows, fewer than max_num_seqs ({self.max_num_seqs}); "
                "plan a bucket with more rows or lower max_num_seqs"
            )
        if self.deterministic and len(grid) > 1:
            raise ConfigError(f"deterministic mode needs a grid of one bucket, this one has {len(grid)}")

    def __post_init__(self) -> None:
        lowest = {"max_num_seqs": 1, "max_num_batched_tokens": 1, "long_prefill_token_threshold": 0}
        for name, low in lowest.items():
            if getattr(self, name) < low:
                raise ConfigError(f"{name} must be at least {low}, got {getattr(self, name)}")
        check_tokens_for_all(self.max_num_batched_tokens, self.max_num_seqs)
        if self.deterministic and self.speculation is not None:
            raise ConfigError(
                "deterministic mode computes every generated position in a row of its own, which drafts are not; "
                "leave out speculative_config or deterministic"
            )
        if self.scheduling_policy not in URGENCY:
            raise ConfigError(f"scheduling_policy must be one of {', '.join(URGENCY)}, got {self.scheduling_policy!r}")


def check_tokens_for_all(max_num_batched_tokens: int, max_num_seqs: int) -> None:
    """Refuse steps without a token for each running sequence.

    Raises:
        ConfigError: with both numbers.
    """
    if max_num_batched_tokens < max_num_seqs:
        raise ConfigError(
            f"max_num_batched_tokens ({max_num_batched_tokens}) must be at least max_num_seqs ({max_num_seqs}): "
            "every running sequence gets one token a step"
        )
