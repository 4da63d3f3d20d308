"""How long a model may think: the budget of a request in the tokens of its model."""

from __future__ import annotations

from collections.abc import Sequence

from jaxengine.contract.request import ThinkingBudget
from jaxengine.errors import UnsupportedError
from jaxengine.front.parsers.reasoning import ReasoningFormat
from jaxengine.server.service import Service
from jaxengine.text.tokenizer import Tokenizer, require_tokenizer

PARAM = "thinking_token_budget"

TAIL = 16
"""Tokens at the end of a prompt, among which there is the marker that opens or closes a block."""


def thinking_budget(
    tokens: int | None, service: Service, *, text: str | None, token_ids: Sequence[int]
) -> ThinkingBudget | None:
    """The budget of one prompt, of which `text` may be unknown. None where none is asked for.

    Raises:
        UnsupportedError: the server was not told how its model reasons, or its markers are not tokens, of which alone can be said
            where a block begins and ends.
    """
    if tokens is None:
        return None
    form = service.reasoning_format
    if form is None:
        raise UnsupportedError(
            "a budget of thoughts (thinking_token_budget, thinking.budget_tokens) needs a server that was told how its model "
            "reasons; start it with --reasoning-parser",
            param=PARAM,
        )
    tokenizer = require_tokenizer(service.tokenizer, PARAM)
    begin, end = (tokenizer.backend.token_to_id(marker) for marker in form.markers)
    if begin is None or end is None:
        raise UnsupportedError(
            "a budget of thoughts (thinking_token_budget, thinking.budget_tokens) cannot be kept: thoughts of this model do not "
            "stand between two tokens of their own; bound them with max_tokens, or with reasoning_effort",
            param=PARAM,
        )
    opened = form.opened_by(tokenizer.decode(token_ids[-TAIL:]) if text is None else text)
    opened = form.begins_open if opened is None else opened
    if opened and begin in token_ids:  # what the prompt has of the block counts, too
        tokens = max(0, tokens - [*reversed(token_ids)].index(begin))
    return ThinkingBudget(tokens, begin, _end(form, end, service, tokenizer), opened=opened)


def _end(form: ReasoningFormat, end: int, service: Service, tokenizer: Tokenizer) -> tuple[int, ...]:
    """The tokens that a block has to end with: the marker, or the server's own words before it."""
    words = (service.options.api.reasoning_end or "").removesuffix(form.end)
    return (*tokenizer.encode(words, add_special_tokens=False), end) if words else (end,)
