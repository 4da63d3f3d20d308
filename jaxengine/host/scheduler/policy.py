"""Who comes first and how much of a step each gets: pure functions, so that a policy can be read and tested alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from jaxengine.contract.request import Request

Urgency = tuple[float, ...]
"""A sequence's place in the order: smaller runs first and is preempted last. Unique among the sequences of an engine."""


def fcfs(request: Request, number: int, index: int) -> Urgency:
    """First come, first served; `number` counts the requests that were added, `index` is the sequence of its request."""
    return (number, index)


def priority(request: Request, number: int, index: int) -> Urgency:
    """Lower `priority` first, then the earlier arrival."""
    return (request.priority, request.arrival, number, index)


def fair(request: Request, number: int, index: int) -> Urgency:
    """First come, first served within a share; what the share was served comes before that, and `FairQueue` knows it."""
    return (0.0, number, index)


URGENCY: Mapping[str, Callable[[Request, int, int], Urgency]] = {"fcfs": fcfs, "priority": priority, "fair": fair}


def prompt_shares(left: Sequence[int], *, threshold: int) -> list[int]:
    """How many of each prompt's tokens `left` may go into this step; a threshold of 0, or a lone prompt, is no limit."""
    if threshold == 0 or len(left) < 2:
        return list(left)
    return [min(tokens, threshold) for tokens in left]


def spare_rows(*, rows: int, max_rows: int, max_tokens: int) -> int:
    """Rows of one token that sequences with more than one to compute may take beyond the one each has of right.

    At most half of the step's remaining tokens, so that prompts go on as well.
    """
    return max(0, min(max_rows - rows, (max_tokens - rows) // 2))


def reserve_pages(capacity: int, *, running: int) -> int:
    """Pages that stay free when a sequence is admitted beside running ones.

    Running sequences grow: admitting to the last page would preempt the newcomer a few steps later and compute its prompt
    twice. One page in a hundred, at least one, and no more than one for each running sequence.
    """
    return min(running, max(1, capacity // 100))
