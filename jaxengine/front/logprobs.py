"""Log probabilities from the device in vLLM's form: per position, a dict from token id to `Logprob`."""

from __future__ import annotations

from collections.abc import Sequence

from jaxengine.contract.batch import RowLogprobs
from jaxengine.contract.outputs import MINUS_INFINITY, Logprob, PositionLogprobs
from jaxengine.text.tokenizer import Tokenizer

TEXT_CONTEXT = 4
"""Ids before a token that may have begun its character."""


def position_logprobs(
    row: RowLogprobs, token_id: int, *, count: int, context: Sequence[int], tokenizer: Tokenizer | None
) -> PositionLogprobs:
    """The given token first, then the `count` most likely ones (all that `row` has for -1), best first.

    `context` are the ids before the token, of which the last four are looked at.
    """
    before = context[-TEXT_CONTEXT:]
    limit = len(row.top_ids) if count < 0 else count
    position = {token_id: _entry(row.logprob, row.rank, token_id, before, tokenizer)}
    ranked = zip(row.top_ids[:limit].tolist(), row.top_logprobs[:limit].tolist(), strict=True)
    for rank, (top_id, logprob) in enumerate(ranked, start=1):
        if top_id != token_id:
            position[top_id] = _entry(logprob, rank, top_id, before, tokenizer)
    return position


def _entry(logprob: float, rank: int, token_id: int, context: Sequence[int], tokenizer: Tokenizer | None) -> Logprob:
    text = None if tokenizer is None else tokenizer.token_text_after(context, token_id)
    return Logprob(max(float(logprob), MINUS_INFINITY), int(rank), text)
