"""What one step changed for one sequence, as the scheduler tells it to whoever builds outputs."""

from __future__ import annotations

from dataclasses import dataclass

from jaxengine.batch import RowLogprobs


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceUpdate:
    """The news of one sequence after one step; values only, never a `Sequence`.

    `token_ids` are the tokens it gained (at most one today) and `logprobs` stand beside them, None where none were asked for.
    `prompt_logprobs` are those of the next prompt positions, in order, the first being position 1. `finish_reason` is None
    while the sequence runs, then `stop` or `length`; `stop_reason` is the stop token id, None for the end of
    sequence. `first_scheduled_time` is in seconds of the scheduler's clock.
    """

    request_id: str
    index: int
    token_ids: tuple[int, ...]
    logprobs: tuple[RowLogprobs | None, ...]
    prompt_logprobs: tuple[RowLogprobs, ...]
    finish_reason: str | None
    stop_reason: int | str | None
    num_cached_tokens: int
    num_preemptions: int
    first_scheduled_time: float | None = None
