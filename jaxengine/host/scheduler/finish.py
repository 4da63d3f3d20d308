"""When a sequence ends by its tokens. Stop strings are found where the text is."""

from __future__ import annotations

from collections.abc import Container
from typing import NamedTuple


class Finish(NamedTuple):
    """Why a sequence ended: `stop` with the stop token id (None: the end of sequence), or `length`."""

    reason: str
    stop_reason: int | None


def finish_after(token: int, *, eos_token_id: int | None, stop_ids: Container[int], full: bool) -> Finish | None:
    """The end of a sequence whose last token is `token`, or None while it goes on.

    `min_tokens` is not looked at: until then these ids are masked, so they cannot be sampled.

    Args:
        token: the token it gained.
        eos_token_id: the end of sequence, None when there is none or it is ignored.
        stop_ids: ids that end it and are reported.
        full: it has all the tokens that it may have.
    """
    if token == eos_token_id:
        return Finish("stop", None)
    if token in stop_ids:
        return Finish("stop", token)
    if full:
        return Finish("length", None)
    return None
