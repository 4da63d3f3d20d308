"""From the result of one step to what its sequences gained, and which of them end."""

from __future__ import annotations

from typing import cast

from jaxengine.contract.batch import Floats, Pool, Row, RowLogprobs, Score, StepResult
from jaxengine.contract.updates import SequenceUpdate
from jaxengine.host.scheduler.assembly import Assembly, new_tuple
from jaxengine.host.scheduler.finish import finish_after
from jaxengine.host.scheduler.ngram import propose
from jaxengine.host.scheduler.sequence import ONE, Sequence, State

NO_LOGPROBS = (None,)
Logprobs = tuple[RowLogprobs | None, ...]


def apply_result(step: Assembly, result: StepResult) -> list[tuple[Sequence, SequenceUpdate]]:
    """Give the sequences of `step` what it has computed for them; return the news of each, in the order of the rows.

    Sequences gain tokens, and drafts to follow them. One whose news has a `finish_reason` still holds its pages and its slot:
    the caller ends it. Those that ended while the step ran (aborted, or stopped by the step before) are passed over.

    Raises:
        ValueError: `result` has another number of tokens than the step kept places; no sequence was changed.
    """
    if not len(result.tokens) == len(result.logprobs) == step.num_kept:
        raise ValueError(
            f"the step kept {step.num_kept} places, its result has {len(result.tokens)} tokens and "
            f"{len(result.logprobs)} log probabilities"
        )
    tokens, logprobs, embeddings = result.tokens.tolist(), result.logprobs, iter(result.embeddings)
    taken: list[tuple[Sequence, SequenceUpdate]] = []
    over = State.FINISHED
    place = 0
    for sequence, row in step.kept:
        want = row.want
        if want is ONE and sequence.grammar_error is None:
            at, place = place, place + 1
            if sequence.state is over:
                continue
            sequence.pending -= 1
            update = _take_token(sequence, tokens[at], logprobs[at])
        else:
            at, place = place, place + row.num_kept
            embedding = next(embeddings) if type(want) is Pool else None
            if sequence.state is over:
                continue
            update = _take_other(sequence, row, tokens[at:place], logprobs[at:place], embedding)
        taken.append((sequence, update))
    return taken


def _take_other(
    sequence: Sequence, row: Row, tokens: list[int], logprobs: Logprobs, embedding: Floats | None
) -> SequenceUpdate:
    """The results of a row that was asked for more than one token, or for something else."""
    want = row.want
    if embedding is not None:
        sequence.pending -= 1
        return _without_token(sequence, finish_reason="stop", embedding=embedding)
    scores: tuple[RowLogprobs, ...] = ()
    if isinstance(want, Score):
        scores = cast("tuple[RowLogprobs, ...]", logprobs[: len(want.targets)])
        if not want.sample:
            return _without_token(sequence, prompt_logprobs=scores)
        tokens, logprobs = tokens[len(want.targets) :], logprobs[len(want.targets) :]
    sequence.pending -= 1
    if sequence.grammar_error is not None:
        return _without_token(
            sequence, prompt_logprobs=scores, finish_reason="error", stop_reason=sequence.grammar_error
        )
    if not sequence.drafted:
        return _take_tokens(sequence, tuple(tokens), logprobs, prompt_logprobs=scores)
    assert row.tokens is not None
    drafts = row.tokens[1:]
    right = 0
    while right < len(drafts) and drafts[right] == tokens[right]:
        right += 1
    if sequence.state is State.RUNNING:
        sequence.num_computed -= len(drafts) - right
    sequence.drafted = 0
    sequence.note_drafts(len(drafts), right)
    return _take_tokens(
        sequence,
        tuple(tokens[: right + 1]),
        logprobs[: right + 1],
        num_drafts=len(drafts),
        num_accepted=right,
    )


def _take_token(sequence: Sequence, token: int, logprobs: RowLogprobs | None) -> SequenceUpdate:
    """A sequence gains one token, as nearly all do in nearly every step: a short way, unless it ends or guesses on."""
    group = sequence.group
    if token in group.ends or sequence.num_tokens + 1 >= sequence.max_length or sequence.speculation is not None:
        return _take_tokens(sequence, (token,), (logprobs,))
    sequence.append(token)
    return new_tuple(
        SequenceUpdate,
        (
            group.request_id,
            sequence.index,
            (token,),
            NO_LOGPROBS if logprobs is None else (logprobs,),
            (),
            None,
            None,
            sequence.num_cached or 0,
            sequence.num_preemptions,
            group.first_scheduled_time,
            0,
            0,
            None,
        ),
    )


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
    group = sequence.group
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
    if finish is None and sequence.state is State.RUNNING:
        sequence.proposal = _proposal(sequence)
    return SequenceUpdate(
        group.request_id,
        sequence.index,
        tokens,
        logprobs,
        prompt_logprobs,
        None if finish is None else finish.reason,
        None if finish is None else finish.stop_reason,
        sequence.num_cached or 0,
        sequence.num_preemptions,
        group.first_scheduled_time,
        num_drafts,
        num_accepted,
    )


def _proposal(sequence: Sequence) -> tuple[int, ...]:
    """The drafts that may stand behind the last token: as many as the sequence has room for, none while it rests."""
    if sequence.speculation is None or sequence.num_tokens < sequence.rests_until:
        return ()
    room = sequence.max_length - sequence.num_tokens - 1
    return propose(sequence.tokens, sequence.speculation)[:room]


def _without_token(
    sequence: Sequence,
    *,
    prompt_logprobs: tuple[RowLogprobs, ...] = (),
    finish_reason: str | None = None,
    stop_reason: str | None = None,
    embedding: Floats | None = None,
) -> SequenceUpdate:
    """The update of a sequence that gained no token."""
    group = sequence.group
    return SequenceUpdate(
        request_id=group.request_id,
        index=sequence.index,
        token_ids=(),
        logprobs=(),
        prompt_logprobs=prompt_logprobs,
        finish_reason=finish_reason,
        stop_reason=stop_reason,
        num_cached_tokens=sequence.num_cached or 0,
        num_preemptions=sequence.num_preemptions,
        first_scheduled_time=group.first_scheduled_time,
        embedding=embedding,
    )
