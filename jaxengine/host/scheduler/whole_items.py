"""How many tokens of prompts go into a step where items see each other, so that no row ends within one."""

from __future__ import annotations

from jaxengine.host.scheduler.limits import SchedulerLimits
from jaxengine.host.scheduler.sequence import Sequence


def has_runs(sequence: Sequence) -> bool:
    """Whether rows of its prompt may not end everywhere, as items see each other."""
    return sequence.shown is not None and sequence.shown.has_runs(sequence.num_computed)


def is_stuck(sequence: Sequence) -> bool:
    """Whether a sequence can compute nothing without more pages."""
    end = sequence.covered_end
    return sequence.num_computed >= (end if sequence.shown is None else sequence.shown.whole_end(end))


def whole_take(sequence: Sequence, share: int, *, room: int, limits: SchedulerLimits) -> int:
    """Tokens of the next row of a prompt: its share and the rest of the item that this ends in, as far as there is room.

    0 where there is not enough for the next item. In deterministic mode no row of one token is made or left, as
    `SchedulerLimits.prompt_take` has it.
    """
    shown, start = sequence.shown, sequence.num_computed
    assert shown is not None
    most = sequence.prompt_end
    end = min(shown.next_end(start + share), most)
    if limits.deterministic and most - end == 1:
        end = most
    end = shown.whole_end(min(end, start + room))
    while limits.deterministic and end > start and most - end == 1:
        end = shown.whole_end(end - 1)
    take = end - start
    return 0 if take <= 0 or (limits.deterministic and take == 1) else take
