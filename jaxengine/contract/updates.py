"""What one step changed for one sequence, as the scheduler tells it to whoever builds outputs."""

from __future__ import annotations

from typing import NamedTuple

from jaxengine.contract.batch import Floats, RowLogprobs

_new_tuple = tuple.__new__
_NO_LOGPROBS = (None,)


class Admission(NamedTuple):
    """How a sequence came to run: tokens of its prompt found in the KV cache when it first did, how often it was preempted since.

    `first_scheduled_time`, of its request, is in seconds of the scheduler's clock.
    """

    num_cached_tokens: int = 0
    num_preemptions: int = 0
    first_scheduled_time: float | None = None


class SequenceUpdate(NamedTuple):
    """The news of one sequence after one step; values only, never a `Sequence`.

    `token_ids` are the tokens it gained, several when drafts were right, and `logprobs` stand beside them, None where none
    were asked for. `prompt_logprobs` are those of the next prompt positions, in order, the first being position 1.
    `finish_reason` is None while the sequence runs, then `stop`, `length` or `error`; `stop_reason` is the stop token id,
    None for the end of sequence, and what is wrong where the reason is `error`. Of `num_draft_tokens` that were checked
    `num_accepted_tokens` were right. `embedding` is the final hidden state `[E]` of a prompt that was to be pooled.
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
    embedding: Floats | None = None

    @staticmethod
    def of_token(
        request_id: str, index: int, token: int, logprobs: RowLogprobs | None, admission: Admission
    ) -> SequenceUpdate:
        """The news of a sequence that gained one token and goes on.

        Nearly all news is such; this takes half the time of the constructor that names the fields, which a test holds it to.
        """
        row_logprobs = _NO_LOGPROBS if logprobs is None else (logprobs,)
        return _new_tuple(
            SequenceUpdate, (request_id, index, (token,), row_logprobs, admission, (), None, None, 0, 0, None)
        )
