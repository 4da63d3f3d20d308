"""What one step changed for one sequence, as the scheduler tells it to whoever builds outputs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import repeat
from typing import Any, NamedTuple

from jaxengine.contract.arrays import Floats
from jaxengine.contract.batch import RowLogprobs

FIRST_VERSION = "0"
"""What weights are called that an engine was started with."""

_new_tuple = tuple.__new__
_NO_LOGPROBS = (None,)


class Admission(NamedTuple):
    """How a sequence came to run: tokens of its prompt found in the KV cache when it first did, how often it was preempted since.

    `first_scheduled_time`, of its request, is in seconds of the scheduler's clock. `waited_for` is what kept the request out of
    the step before that: `max_num_seqs`, `max_num_batched_tokens`, `kv_cache`, `prefix_cache` (another computed the same
    prompt), `max_loras` (its adapter had no slot) or `encoder_cache` (what it shows had no room). None: it only waited for a step
    to begin. `cached_from` says how many of the tokens that were found came from which other tier: `host`, `disk`, `p2p`. It runs
    with the weights of `weight_version`: while these change nothing runs.
    """

    num_cached_tokens: int = 0
    num_preemptions: int = 0
    first_scheduled_time: float | None = None
    waited_for: str | None = None
    cached_from: tuple[tuple[str, int], ...] = ()
    weight_version: str = FIRST_VERSION


class SequenceUpdate(NamedTuple):
    """The news of one sequence after one step; values only, never a `Sequence`.

    `token_ids` are the tokens it gained, several when drafts were right, and `logprobs` stand beside them, None where none
    were asked for. `prompt_logprobs` are those of the next prompt positions, in order, the first being position 1.
    `finish_reason` is None while the sequence runs, then `stop`, `length`, `error` or `abort`; `stop_reason` is the stop token
    id, None for the end of sequence, and what is wrong where the reason is `error`. Of `num_draft_tokens` that were checked
    `num_accepted_tokens` were right. `pooled` is what the model made of a prompt that was to be pooled: `[D]`, or of each token
    `[tokens, D]`. `position` counts the output tokens before these: an update that was applied already is known by it.
    """

    request_id: str
    index: int  # type: ignore[assignment]  # hides a method of tuples that nobody calls
    token_ids: tuple[int, ...]
    logprobs: tuple[RowLogprobs | None, ...]
    admission: Admission
    prompt_logprobs: tuple[RowLogprobs, ...] = ()
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    pooled: Floats | None = None
    position: int = 0

    @staticmethod
    def of_token(
        request_id: str, index: int, token: int, logprobs: RowLogprobs | None, admission: Admission, position: int
    ) -> SequenceUpdate:
        """The news of a sequence that gained one token and goes on.

        Nearly all news is such; this takes half the time of the constructor that names the fields, which a test holds it to.
        """
        row_logprobs = _NO_LOGPROBS if logprobs is None else (logprobs,)
        return _new_tuple(
            SequenceUpdate, (request_id, index, (token,), row_logprobs, admission, (), None, None, 0, 0, None, position)
        )

    @staticmethod
    def of_tokens(
        request_ids: Sequence[str],
        indices: Sequence[int],
        tokens: Sequence[int],
        logprobs: Sequence[RowLogprobs | None],
        admissions: Sequence[Admission],
        positions: Sequence[int],
    ) -> list[SequenceUpdate]:
        """What `of_token` makes of each of these."""
        none = repeat(None)
        of_tokens = [_NO_LOGPROBS if of_token is None else (of_token,) for of_token in logprobs]
        same = (repeat(()), none, none, repeat(0), repeat(0), none)
        rows = zip(
            request_ids, indices, zip(tokens, strict=True), of_tokens, admissions, *same, positions, strict=False
        )
        return [*map(_new_tuple, repeat(SequenceUpdate), rows)]

    @staticmethod
    def of_drafts(
        request_id: str,
        index: int,
        tokens: tuple[int, ...],
        logprobs: tuple[RowLogprobs | None, ...],
        admission: Admission,
        num_drafts: int,
        num_right: int,
        position: int,
    ) -> SequenceUpdate:
        """The news of a sequence that gained these tokens, of whose drafts so many were right, and goes on."""
        news = (request_id, index, tokens, logprobs, admission, (), None, None, num_drafts, num_right, None, position)
        return _new_tuple(SequenceUpdate, news)


_ADMISSION = SequenceUpdate._fields.index("admission")


def by_field(updates: Sequence[SequenceUpdate]) -> list[Sequence[Any]]:
    """All values of each field, which are quick to pickle."""
    if not updates:
        return []
    columns: list[Sequence[Any]] = [*zip(*updates, strict=True)]
    columns[_ADMISSION] = [*map(tuple, columns[_ADMISSION])]
    return columns


def from_fields(columns: list[Sequence[Any]]) -> tuple[SequenceUpdate, ...]:
    """The updates whose values `by_field` had."""
    if not columns:
        return ()
    admissions = map(partial(_new_tuple, Admission), columns[_ADMISSION])
    rows = zip(*columns[:_ADMISSION], admissions, *columns[_ADMISSION + 1 :], strict=True)
    return tuple(map(partial(_new_tuple, SequenceUpdate), rows))
