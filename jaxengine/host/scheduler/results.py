"""From the result of one step to what its sequences gained, and which of them end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

from jaxengine.contract.arrays import Floats
from jaxengine.contract.batch import RowLogprobs, StepResult
from jaxengine.contract.rows import Pool, Row, Score
from jaxengine.contract.step_updates import Gained, StepUpdates
from jaxengine.contract.updates import SequenceUpdate
from jaxengine.host.scheduler.assembly import Assembly
from jaxengine.host.scheduler.finish import finish_after
from jaxengine.host.scheduler.sequence import Sequence, State
from jaxengine.host.scheduler.steady import Steady, SteadyRows

Logprobs = tuple[RowLogprobs | None, ...]


@dataclass(slots=True)
class Applied:
    """What one result has changed: the news of each sequence, of steady ones what they `gained`; those whose tokens fill another
    page, and those that ended.

    `due` are those who are steady and were to be looked at.
    """

    gained: Gained | None = None
    updates: list[SequenceUpdate] = field(default_factory=list)
    filled: list[Sequence] = field(default_factory=list)
    ended: list[Sequence] = field(default_factory=list)
    due: list[Sequence] = field(default_factory=list)

    @property
    def news(self) -> StepUpdates:
        """All of it that is told."""
        return StepUpdates([self.updates] if self.gained is None else [self.gained, self.updates])


def apply_result(step: Assembly, result: StepResult, steady: Steady) -> Applied:
    """Give the sequences of `step` what it has computed for them.

    Sequences gain tokens, and drafts to follow them. One that ended still holds its pages and its slot: the caller ends it.
    Those that ended while the step ran (aborted, or stopped by the step before) are passed over.

    Raises:
        ValueError: `result` has another number of tokens than the step kept places; no sequence was changed.
    """
    if not len(result.tokens) == len(result.logprobs) == step.num_kept:
        raise ValueError(
            f"the step kept {step.num_kept} places, its result has {len(result.tokens)} tokens and "
            f"{len(result.logprobs)} log probabilities"
        )
    applied = Applied()
    tokens, logprobs, pooled = result.tokens.tolist(), result.logprobs, iter(result.pooled)
    if step.steady:
        _apply_steady(step.steady, result, applied, steady)
    at, place = len(step.steady), len(step.steady) + len(step.plain)
    _apply_plain(step.plain, tokens[at:place], logprobs[at:place], applied, steady)
    place = _apply_drafted(step, tokens, logprobs, applied)
    if result.drafts is not None:
        guesses = dict(zip(step.rows.slots, result.drafts.tolist(), strict=False))
        for sequence in step.masking:
            if sequence.state is State.RUNNING and sequence.slot in guesses:
                sequence.guesses = tuple(guesses[sequence.slot])
    for sequence, row in step.asked:
        at, place = place, place + row.num_kept
        of_row = next(pooled) if isinstance(row.want, Pool) else None
        if sequence.state is not State.FINISHED:
            if sequence.steady:
                steady.settle(sequence)
            _add(applied, sequence, _apply_row(sequence, row, tokens[at:place], logprobs[at:place], of_row))
    steady.end_result()
    for sequence in applied.due:
        steady.settle(sequence)
        if sequence.num_tokens >= sequence.publishes_at:
            applied.filled.append(sequence)
    return applied


def failed_update(sequence: Sequence, problem: str) -> SequenceUpdate:
    """The last update of a sequence that cannot go on."""
    return _without_token(sequence, finish_reason="error", stop_reason=problem)


def _apply_steady(rows: SteadyRows, result: StepResult, applied: Applied, steady: Steady) -> None:
    """A token for each of these, as nearly all gain in nearly every step: for all together."""
    array, logprobs = result.tokens[: len(rows)], result.logprobs[: len(rows)]
    tokens = array.tolist()
    alone, applied.due = steady.alone(rows, tokens)
    positions = steady.take(rows, array)
    some = None if logprobs.count(None) == len(logprobs) else logprobs
    applied.gained = Gained(rows.roster, array, positions, some).without(alone)
    if alone:
        sequences = [rows.sequences[number] for number in alone]
        of_rows = tuple([logprobs[number] for number in alone])
        _apply_plain(sequences, [tokens[number] for number in alone], of_rows, applied, steady)


def _apply_plain(
    sequences: list[Sequence], tokens: list[int], logprobs: Logprobs, applied: Applied, steady: Steady
) -> None:
    """A token for each of these sequences: a short way, unless it is the last."""
    updates, over, of_token = applied.updates, State.FINISHED, SequenceUpdate.of_token
    for sequence, token, row_logprobs in zip(sequences, tokens, logprobs, strict=False):
        if sequence.state is over:
            continue
        if sequence.steady:
            steady.settle(sequence)
        sequence.pending -= 1
        at = sequence.num_tokens
        if token in sequence.ends or at + 1 >= sequence.max_length:
            _add(applied, sequence, _take_tokens(sequence, (token,), (row_logprobs,)))
            continue
        sequence.append(token)
        position = at - sequence.num_prompt
        updates.append(of_token(sequence.request_id, sequence.index, token, row_logprobs, sequence.admission, position))
        if at + 1 >= sequence.publishes_at:
            applied.filled.append(sequence)


def _apply_drafted(step: Assembly, tokens: list[int], logprobs: Logprobs, applied: Applied) -> int:
    """The tokens of rows with as many drafts each, up to the first wrong one: a short way, unless a sequence ends with them.

    Returns:
        The first place behind theirs.
    """
    place, num_drafts = len(step.steady) + len(step.plain), step.num_drafts
    updates, over, of_drafts = applied.updates, State.FINISHED, SequenceUpdate.of_drafts
    for sequence in step.drafted:
        at, place = place, place + 1 + num_drafts
        if sequence.state is over:
            continue
        right = num_drafts - tokens[at:place].count(-1)
        gained, row_logprobs = tuple(tokens[at : at + right + 1]), logprobs[at : at + right + 1]
        sequence.pending -= 1
        sequence.ahead -= num_drafts
        if sequence.state is State.RUNNING:
            sequence.num_computed -= num_drafts - right
        if sequence.num_tokens + right + 1 >= sequence.max_length or not sequence.ends.isdisjoint(gained):
            update = _take_tokens(sequence, gained, row_logprobs, num_drafts=num_drafts, num_accepted=right)
            _add(applied, sequence, update)
            continue
        position = sequence.num_tokens - sequence.num_prompt
        sequence.extend(gained)
        admission = sequence.admission
        updates.append(
            of_drafts(sequence.request_id, sequence.index, gained, row_logprobs, admission, num_drafts, right, position)
        )
        if sequence.num_tokens >= sequence.publishes_at:
            applied.filled.append(sequence)
    return place


def _add(applied: Applied, sequence: Sequence, update: SequenceUpdate) -> None:
    applied.updates.append(update)
    if update.finish_reason is not None:
        applied.ended.append(sequence)
    elif sequence.num_tokens >= sequence.publishes_at:
        applied.filled.append(sequence)


def _apply_row(
    sequence: Sequence, row: Row, tokens: list[int], logprobs: Logprobs, pooled: Floats | None
) -> SequenceUpdate:
    """The results of one row, by what was asked of it."""
    scores: tuple[RowLogprobs, ...] = ()
    if isinstance(row.want, Score):
        count = len(row.want.targets)
        scores = cast("tuple[RowLogprobs, ...]", logprobs[:count])
        if not row.want.sample:
            return _without_token(sequence, prompt_logprobs=scores)
        tokens, logprobs = tokens[count:], logprobs[count:]
    sequence.pending -= 1
    if pooled is not None:
        return _without_token(sequence, finish_reason="stop", pooled=pooled)
    num_drafts = len(tokens) - 1
    right = num_drafts - tokens.count(-1)
    sequence.ahead -= num_drafts
    if sequence.state is State.RUNNING:
        sequence.num_computed -= num_drafts - right
    if sequence.drafts is not None and num_drafts:
        sequence.drafts.note(num_drafts, right, length=sequence.num_tokens)
    gained = right + 1
    error, sequence.grammar_error = sequence.grammar_error, None
    fails = error is not None and right >= sequence.error_behind
    if fails:
        gained = sequence.error_behind
    update = _take_tokens(
        sequence,
        tuple(tokens[:gained]),
        logprobs[:gained],
        prompt_logprobs=scores,
        num_drafts=num_drafts,
        num_accepted=right,
    )
    if fails and update.finish_reason is None:
        return update._replace(finish_reason="error", stop_reason=error)
    return update


def _take_tokens(
    sequence: Sequence,
    tokens: tuple[int, ...],
    logprobs: Logprobs,
    *,
    prompt_logprobs: tuple[RowLogprobs, ...] = (),
    num_drafts: int = 0,
    num_accepted: int = 0,
) -> SequenceUpdate:
    """A sequence gains these tokens up to the one that ends it; if none does and it runs, what follows may be guessed."""
    group, position = sequence.group, sequence.num_output
    finish = None
    for number, token in enumerate(tokens, 1):
        sequence.append(token)
        finish = finish_after(
            token,
            eos_token_id=group.eos_token_id,
            stop_ids=group.stop_ids,
            full=sequence.num_tokens >= sequence.max_length,
        )
        if finish is not None:
            tokens, logprobs = tokens[:number], logprobs[:number]
            break
    if finish is None and sequence.state is State.RUNNING and sequence.drafts is not None:
        sequence.drafts.propose(sequence.tokens, room=sequence.max_length - sequence.num_tokens - 1)
    return SequenceUpdate(
        request_id=sequence.request_id,
        index=sequence.index,
        token_ids=tokens,
        logprobs=logprobs,
        admission=sequence.admission,
        prompt_logprobs=prompt_logprobs,
        finish_reason=None if finish is None else finish.reason,
        stop_reason=None if finish is None else finish.stop_reason,
        num_draft_tokens=num_drafts,
        num_accepted_tokens=num_accepted,
        position=position,
    )


def _without_token(
    sequence: Sequence,
    *,
    prompt_logprobs: tuple[RowLogprobs, ...] = (),
    finish_reason: str | None = None,
    stop_reason: str | None = None,
    pooled: Floats | None = None,
) -> SequenceUpdate:
    """The update of a sequence that gained no token."""
    return SequenceUpdate(
        request_id=sequence.request_id,
        index=sequence.index,
        token_ids=(),
        logprobs=(),
        admission=sequence.admission,
        prompt_logprobs=prompt_logprobs,
        finish_reason=finish_reason,
        stop_reason=stop_reason,
        pooled=pooled,
        position=sequence.num_output,
    )
