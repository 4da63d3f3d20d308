"""The masks of sequences with a grammar, made while their step's forward pass runs."""

from __future__ import annotations

import logging
from collections.abc import Sequence as Many

from jaxengine.batch import Bitmask, Row
from jaxengine.grammar.matching import GrammarError, GrammarState
from jaxengine.scheduler.sequence import Sequence, State

logger = logging.getLogger(__name__)


def grammar_masks(sampled: Many[tuple[Sequence, bool]], rows: Many[Row]) -> dict[int, Bitmask]:
    """Masks by place among the sampled rows: what the grammar allows and, as far as anything is left, the row's own mask.

    A sequence whose grammar cannot go on is marked with the reason; it ends with this step.

    Args:
        sampled: the sequence of each sampled row, and whether the row only reports on a known prompt token.
        rows: the sampled rows.
    """
    places = [
        place
        for place, (sequence, is_target) in enumerate(sampled)
        if sequence.grammar is not None and not is_target and sequence.state is State.RUNNING
    ]
    if not places:
        return {}
    masks: dict[int, Bitmask] = {}
    ready = []
    for place in places:
        sequence = sampled[place][0]
        assert sequence.grammar is not None
        try:
            sequence.grammar.advance(sequence.tokens[sequence.num_prompt :])
            ready.append((place, sequence.grammar))
        except GrammarError as error:
            _fail(sequence, error)
    for (place, _), mask in zip(ready, GrammarState.masks([state for _, state in ready]), strict=True):
        if isinstance(mask, GrammarError):
            _fail(sampled[place][0], mask)
            continue
        sampling = rows[place].sampling
        own = None if sampling is None or sampling.allowed is None else mask & sampling.allowed
        masks[place] = mask if own is None or not own.any() else own
    return masks


def _fail(sequence: Sequence, error: Exception) -> None:
    sequence.grammar_error = str(error)
    logger.warning("request %s ends: %s", sequence.group.request.request_id, error)
