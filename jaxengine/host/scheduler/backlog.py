"""What running prompts will still ask of the next steps."""

from __future__ import annotations

from jaxengine.host.scheduler.limits import SchedulerLimits
from jaxengine.host.scheduler.sequence import Sequence


def prompt_backlog(sequence: Sequence, limits: SchedulerLimits) -> int:
    """Prompt tokens that a running sequence will ask of the next steps, as far as the threshold lets it."""
    if sequence.steady:
        return 0
    left = max(0, sequence.row_end - sequence.num_computed)
    left = 0 if left == 1 else left
    if sequence.scores:
        left = min(left, limits.max_kept)
    return min(left, limits.long_prefill_token_threshold or left)
