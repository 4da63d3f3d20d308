"""The masks that depend on the tokens before: made when these are known, while the forward pass of their step runs."""

from __future__ import annotations

import logging
from collections.abc import Iterable

import numpy as np

from jaxengine.contract.arrays import Bitmask, Int32s, Masks
from jaxengine.grammar.matching import BITS, GrammarError, GrammarState
from jaxengine.host.scheduler.sequence import Sequence, State

logger = logging.getLogger(__name__)

NOTHING_LEFT = "allowed_token_ids, min_tokens or bad_words rule out everything that the structured output allows next"


def changing_masks(sequences: Iterable[Sequence]) -> dict[int, Masks]:
    """By slot, the masks under which the next tokens of each of these sequences are to be sampled, where its slot has others.

    Behind the mask of the next token are those of the places behind its drafts, each as if the drafts before were right.

    Each is there once: the state of a grammar can be asked by one thread at a time.

    With a grammar it is what both the grammar and the request's own mask allow. A sequence that cannot go on because nothing is
    left, or because its grammar gave up, is marked with the reason; it ends with this step, if the drafts up to there are right.
    """
    masks: dict[int, Masks] = {}
    states: list[tuple[Sequence, GrammarState]] = []
    for sequence in sequences:
        if sequence.state is not State.RUNNING:
            continue
        if sequence.grammar is None:
            behind = _with_drafts(sequence)
            mask = sequence.sampling.new_mask(sequence.tokens, always=len(behind) > 0)
            if mask is not None:
                masks[sequence.slot] = (mask, *(sequence.sampling.mask_after(tokens) for tokens in behind))
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
            masks[sequence.slot] = (both, *_behind_drafts(sequence, state, both))
        else:
            _fail(sequence, GrammarError(NOTHING_LEFT))
    return masks


def _with_drafts(sequence: Sequence) -> list[Int32s]:
    """The tokens of a sequence with the first of the drafts that are under way, with the first two, and so on."""
    drafts = np.array(sequence.guesses[: sequence.ahead], np.int32)
    return [np.concatenate([sequence.tokens, drafts[: 1 + number]]) for number in range(len(drafts))]


def _behind_drafts(sequence: Sequence, state: GrammarState, first: Bitmask) -> list[Bitmask]:
    """The masks behind the drafts that are under way: as far as they are allowed, since a wrong one ends what is looked at."""
    masks: list[Bitmask] = []
    allowed = first
    try:
        for nth, (draft, tokens) in enumerate(zip(sequence.guesses, _with_drafts(sequence), strict=False), 1):
            if draft in sequence.ends or not allowed[draft // BITS] >> np.uint32(draft % BITS) & 1:
                break
            state.try_on(draft)
            try:
                allowed = sequence.sampling.within(state.mask(), state.ends, tokens)
                if not allowed.any():
                    raise GrammarError(NOTHING_LEFT)
            except GrammarError as error:
                _fail(sequence, error, behind=nth)
                break
            masks.append(allowed)
    finally:
        state.go_back()
    return masks


def _fail(sequence: Sequence, error: Exception, *, behind: int = 0) -> None:
    """The sequence cannot go on, if so many drafts are right."""
    sequence.grammar_error, sequence.error_behind = str(error), behind
    if not behind:
        logger.warning("request %s ends: %s", sequence.group.request.request_id, error)
