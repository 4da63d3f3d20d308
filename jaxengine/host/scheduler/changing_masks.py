"""The masks that depend on the tokens before: made when these are known, while the forward pass of their step runs."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from jaxengine.contract.batch import Bitmask
from jaxengine.grammar.matching import GrammarError, GrammarState
from jaxengine.host.scheduler.sequence import Sequence, State

logger = logging.getLogger(__name__)

NOTHING_LEFT = "allowed_token_ids, min_tokens or bad_words rule out everything that the structured output allows next"


def changing_masks(sequences: Iterable[Sequence]) -> dict[int, Bitmask]:
    """By slot, the masks under which the next token of each of these sequences is to be sampled, where its slot has another.

    With a grammar it is what both the grammar and the request's own mask allow. A sequence that cannot go on because nothing is
    left, or because its grammar gave up, is marked with the reason; it ends with this step.
    """
    masks: dict[int, Bitmask] = {}
    states: list[tuple[Sequence, GrammarState]] = []
    for sequence in sequences:
        if sequence.state is not State.RUNNING or not sequence.sampling.mask_changes:
            continue
        if sequence.grammar is None:
            mask = sequence.sampling.new_mask(sequence.tokens)
            if mask is not None:
                masks[sequence.slot] = mask
            continue
        try:
            sequence.grammar.advance(sequence.tokens[sequence.num_prompt :])
            states.append((sequence, sequence.grammar))
        except GrammarError as error:
            _fail(sequence, error)
    if not states:
        return masks
    for (sequence, state), by_grammar in zip(states, GrammarState.masks([state for _, state in states]), strict=True):
        if isinstance(by_grammar, GrammarError):
            _fail(sequence, by_grammar)
            continue
        both = sequence.sampling.within(by_grammar, state.ends, sequence.tokens)
        if both.any():
            masks[sequence.slot] = both
        else:
            _fail(sequence, GrammarError(NOTHING_LEFT))
    return masks


def _fail(sequence: Sequence, error: Exception) -> None:
    sequence.grammar_error = str(error)
    logger.warning("request %s ends: %s", sequence.group.request.request_id, error)
